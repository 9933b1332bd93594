"""Resident memory of processes in bytes, as reported by the kernel; None if it reports nothing.

Pages shared by several processes count in each. For a child and its descendants the sum is returned, so it may exceed
what they use together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int, proc: Path = PROC) -> int | None:
    """Returns the resident bytes of one process."""
    try:
        return int((proc / str(pid) / "statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):  # it has ended, or this system has no /proc
        return None


def resident_bytes_of_session(leader: int, proc: Path = PROC) -> int | None:
    """Returns the sum over a session: a child of the supervisor and all processes that it started."""
    own = resident_bytes(leader, proc)
    if own is None:
        return None
    return own + sum(resident_bytes(pid, proc) or 0 for pid in session_members(leader, proc) if pid != leader)


def session_members(leader: int, proc: Path = PROC) -> Iterable[int]:
    """Yields the processes of a session; none where the system has no /proc."""
    if not proc.is_dir():
        return
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if len(after_name) > 3 and after_name[3] == str(leader):
                yield int(entry.name)
