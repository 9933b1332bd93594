"""Memory of a process as Linux reports it, for benchmarks: resident pages by kind, and their peak. Nothing of a node is
imported: contenders' environments use this too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes. Pages that processes share count in each."""

    resident: int
    anonymous: int  # heaps, tensors, Python's objects
    from_files: int  # libraries and mapped files; the system can take them back
    peak: int  # of ``resident``, since the start or ``forget_peak``


def process_memory(pid: int | str = "self") -> ProcessMemory:
    """Raises ``OSError`` for a process that has ended, also while nobody has waited for it."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {fields[0]: int(fields[1]) << 10 for fields in lines if fields and fields[0].startswith(("Rss", "Vm"))}
    if "VmRSS:" not in found:
        raise ProcessLookupError(f"process {pid} has ended")
    from_files = found["RssFile:"] + found["RssShmem:"]
    return ProcessMemory(found["VmRSS:"], found["RssAnon:"], from_files, found["VmHWM:"])


def forget_peak(pid: int | str = "self") -> None:
    """Lets ``peak`` begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
