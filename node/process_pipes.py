"""The pipes of a process that asyncio started."""

from __future__ import annotations

import asyncio


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Closes our ends of the process's pipes, and kills it if it still runs.

    asyncio closes them once the process has ended and every pipe has been read to its end. A pipe that nobody reads, or
    that a descendant of the process holds, stays open until it is collected, which fails once the loop is closed.
    """
    process._transport.close()  # type: ignore[attr-defined]  # the process has no public way to it
