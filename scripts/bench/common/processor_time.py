"""The processor time that processes have taken, as the kernel counts it. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def processor_seconds(pids: Iterable[int]) -> float:
    """Returns the user and system time so far of these processes and of all that descend from them and live."""
    return sum(_own_seconds(each) for pid in pids for each in (pid, *_descendants(pid)))


def _own_seconds(pid: int) -> float:
    with suppress(OSError):  # it has ended
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return 0.0


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _descendants(child)
