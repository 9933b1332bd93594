"""The pipes between a process and its child: those of one that asyncio started, and a child's own output."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import BinaryIO


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Closes our ends of the process's pipes, and kills it if it still runs.

    asyncio closes them once the process has ended and every pipe has been read to its end. A pipe that nobody reads, or
    that a descendant of the process holds, stays open until it is collected, which fails once the loop is closed.
    """
    process._transport.close()  # type: ignore[attr-defined]  # the process has no public way to it


def claim_standard_output() -> BinaryIO:
    """Returns the real standard output, for messages. File descriptor 1, where libraries print, becomes the log."""
    sys.stdout.flush()
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return messages
