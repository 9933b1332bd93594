"""The processor time of processes, as Linux reports it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")  # a second


def cpu_seconds(pid: int) -> float:
    """Returns what all threads of a process have used so far. Raises ``OSError`` for a process that is gone."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def processes_of_group(group: int) -> list[int]:
    """Returns the processes that are in a group now."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if int(_fields(int(folder.name))[2]) == group:
                    found.append(int(folder.name))
            except OSError:
                continue  # it has ended
    return found


def _fields(pid: int) -> list[str]:
    """Returns the fields of ``stat`` from the third on: the second, the name, may have spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
