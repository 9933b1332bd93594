"""The main memory that a process of this machine can have, at most."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")


def host_memory_bytes(control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> int:
    """Returns the machine's memory, or the narrowest limit of our control group and those above it if that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [_limit_bytes(group / "memory.max") for group in own_control_groups(control_groups, proc)]
    return min([machine, *(limit for limit in limits if limit is not None)])


def own_control_groups(control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> list[Path]:
    """Returns the folders of our control group (version 2) and of those above it, innermost first."""
    try:
        membership = (proc / "self" / "cgroup").read_text()
    except OSError:  # not Linux
        return []
    own = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), "/").strip("/")
    innermost = control_groups / own
    return [group for group in (innermost, *innermost.parents) if group.is_relative_to(control_groups)]


def _limit_bytes(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit
