"""The processor time that processes have taken, as the kernel counts it. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")  # a second


def cpu_seconds(pid: int) -> float:
    """Returns what all threads of a process have used so far, user and system. Raises ``OSError`` for a process that
    is gone."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def with_descendants_seconds(pids: Iterable[int]) -> float:
    """Returns the same, summed over these processes and all that descend from them and live."""
    total = 0.0
    for pid in (each for first in pids for each in (first, *_descendants(first))):
        with suppress(OSError):  # it has ended
            total += cpu_seconds(pid)
    return total


def processes_of_group(group: int) -> list[int]:
    """Returns the processes that are in a group now."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended
                if int(_fields(int(folder.name))[2]) == group:
                    found.append(int(folder.name))
    return found


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def _fields(pid: int) -> list[str]:
    """Returns the fields of ``stat`` from the third on: the second, the name, may have spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
