"""The limits of main memory that hold for this process: the machine's, those of control groups, its own. Reads only."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")
NO_LIMIT_BYTES: Final = 1 << 60  # version 1 writes "no limit" as a number near 2^63
PROCESS_LIMITS: Final = {"RLIMIT_AS": resource.RLIMIT_AS, "RLIMIT_DATA": resource.RLIMIT_DATA}


def host_memory_bytes(control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> int:
    """Returns the main memory that this process can have at most: the narrowest of all limits."""
    return min([machine_bytes(), *control_group_limits(control_groups, proc), *process_limits().values()])


def machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def process_limits() -> dict[str, int]:
    """Returns the limits of ``setrlimit`` in bytes, by name; those that are set."""
    soft = {name: resource.getrlimit(kind)[0] for name, kind in PROCESS_LIMITS.items()}
    return {name: limit for name, limit in soft.items() if limit != resource.RLIM_INFINITY}


def control_group_limits(control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> Iterator[int]:
    """Yields the memory limits of our control group and of those above it, of version 2 and of version 1."""
    for controllers, own in _memberships(proc):
        if controllers == "":
            # Beside version 1, version 2 may be mounted in a folder of its own.
            for root in (control_groups, control_groups / "unified"):
                yield from _limits(_up_to(root, own), "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(_up_to(control_groups / "memory", own), "memory.limit_in_bytes")


def control_group_room(control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> int | None:
    """Returns the bytes left until the narrowest limit of our control group and those above it (version 2), not
    counting page cache; None without a limit."""
    rooms = []
    for group in own_control_groups(control_groups, proc):
        for limit in _limits([group], "memory.max"):
            counters = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            taken = int((group / "memory.current").read_text()) - int(counters["inactive_file"])
            rooms.append(max(0, limit - taken))
    return min(rooms, default=None)


def own_control_groups(control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> list[Path]:
    """Returns the folders of our control group (version 2) and of those above it, innermost first."""
    memberships = _memberships(proc)
    if not memberships:
        return []
    return _up_to(control_groups, next((own for controllers, own in memberships if controllers == ""), "/"))


def _memberships(proc: Path) -> list[tuple[str, str]]:
    """Returns controllers, "" for version 2, and the path of each control group that this process is in."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    return [(controllers, own) for _, controllers, own in (line.split(":", 2) for line in lines)]


def _up_to(root: Path, own: str) -> list[Path]:
    group = root / own.strip("/")
    return [each for each in (group, *group.parents) if each.is_relative_to(root)]


def _limits(groups: list[Path], name: str) -> Iterator[int]:
    for group in groups:
        try:
            text = (group / name).read_text().strip()
        except OSError:  # not there: the root has no limit, and a container may see only its own group as the root
            continue
        if text.isdigit() and 0 < int(text) < NO_LIMIT_BYTES:
            yield int(text)
