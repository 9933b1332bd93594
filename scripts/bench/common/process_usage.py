"""What a process takes, as Linux reports it, for benchmarks: resident pages and their peak, descriptors, and processor
time. Nothing of a node is imported: contenders' environments use this too."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")  # a second
_ESTABLISHED: Final = "01"  # TCP's state in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes. Pages that processes share count in each."""

    resident: int
    peak: int  # of ``resident``, since the start or ``forget_peak``
    swapped: int


def process_memory(pid: int | str = "self") -> ProcessMemory:
    """Raises ``OSError`` for a process that has ended, also while nobody has waited for it."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {fields[0]: int(fields[1]) << 10 for fields in lines if fields and fields[0].startswith("Vm")}
    if "VmRSS:" not in found:
        raise ProcessLookupError(f"process {pid} has ended")
    return ProcessMemory(found["VmRSS:"], found["VmHWM:"], found.get("VmSwap:", 0))


def forget_peak(pid: int | str = "self") -> None:
    """Lets ``peak`` begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@dataclass(frozen=True, slots=True)
class ProcessDescriptors:
    open: int
    connections: int  # of these, TCP connections that neither end has closed


def process_descriptors(pid: int | str = "self") -> ProcessDescriptors:
    """Raises ``OSError`` for a process that has ended."""
    here = Path(f"/proc/{pid}")
    names = []
    for descriptor in (here / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            names.append(str(descriptor.readlink()))
    tables = [here / "net" / "tcp", here / "net" / "tcp6"]
    sockets = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    established = {f"socket:[{fields[9]}]" for fields in sockets if fields[3] == _ESTABLISHED}
    return ProcessDescriptors(len(names), sum(name in established for name in names))


def cpu_seconds(pid: int) -> float:
    """Returns what all threads of a process have used so far, user and system. Raises ``OSError`` for a process that
    is gone."""
    # The second field of ``stat``, the name, may have spaces.
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS


def tree_cpu_seconds(pid: int) -> float:
    """Returns what a process, its descendants, and all those of them that have ended have used so far, user and system.
    Raises ``OSError`` for a process that is gone."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it has ended since
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))  # its own, and of children that were waited for
    if pid not in ticks:
        raise ProcessLookupError(f"process {pid} has ended")
    inside = {pid}
    while more := {child for child, parent in parents.items() if parent in inside} - inside:
        inside |= more
    return sum(ticks[each] for each in inside) / _TICKS
