"""The memory that a node may use on this machine, as facts: no judgement, and no torch.

A node on a GPU trains on the device and keeps the rest in main memory; on a CPU everything is in main memory.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from node.configuration import DtypeName
from node.fit.footprint import DeviceKind, Footprint

CGROUPS: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")
NO_LIMIT_BYTES: Final = 1 << 60  # version 1 writes "no limit" as a number near 2^63
# What is left for others. A machine's owner has other programs, and the system needs its page cache; a limit was set
# for this node, and only what the formulas do not see must fit between. Of a GPU the driver and the display take some.
MACHINE_SHARE: Final = 0.85
LIMIT_SHARE: Final = 0.95
DEVICE_SHARE: Final = 0.92


class Limit(Struct, frozen=True):
    """One limit of main memory, and the share of it that a plan may fill."""

    name: str
    bytes: int
    share: float

    @property
    def usable_bytes(self) -> int:
        return int(self.bytes * self.share)


class Machine(Struct, frozen=True, kw_only=True):
    """Where a node would train, and what it may use there: totals and limits, the same from start to start."""

    device: DeviceKind
    dtype: DtypeName  # that "auto" means on this device
    limits: tuple[Limit, ...]  # of main memory, at least one
    device_bytes: int | None = None  # in all, of a GPU; None on a CPU
    disk_free_bytes: int = 1 << 62  # where the data directory is
    has_four_bit: bool = False  # the library for 4-bit weights is installed
    device_share: float = DEVICE_SHARE

    @property
    def narrowest(self) -> Limit:
        return min(self.limits, key=lambda limit: limit.usable_bytes)

    @property
    def host_bytes(self) -> int:
        """What a plan may fill of main memory."""
        return self.narrowest.usable_bytes

    @property
    def usable_device_bytes(self) -> int | None:
        return None if self.device_bytes is None else int(self.device_bytes * self.device_share)

    def excess_bytes(self, footprint: Footprint, share: float = 1.0) -> int:
        """Returns by how much a peak is above ``share`` of what may be filled; 0 or less where all of it fits."""
        over = footprint.peak_bytes("host") - int(self.host_bytes * share)
        if self.usable_device_bytes is None:
            return over
        return max(over, footprint.peak_bytes("device") - int(self.usable_device_bytes * share))


def host_limits(cgroups: Path = CGROUPS, proc: Path = PROC) -> tuple[Limit, ...]:
    """Returns the machine's memory, and every limit under which this process runs."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    groups = [Limit("control group", limit, LIMIT_SHARE) for limit in cgroup_limits(cgroups, proc)]
    kinds = {"RLIMIT_AS": resource.RLIMIT_AS, "RLIMIT_DATA": resource.RLIMIT_DATA}
    own = [
        Limit(name, soft, LIMIT_SHARE)
        for name, kind in kinds.items()
        if (soft := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    ]
    return (Limit("machine", total, MACHINE_SHARE), *groups, *own)


def cgroup_limits(cgroups: Path, proc: Path) -> Iterator[int]:
    """Yields the memory limits of our control group and of those above it, of version 2 and of version 1."""
    try:
        membership = (proc / "self" / "cgroup").read_text()
    except OSError:  # not Linux
        return
    for line in membership.splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers == "":
            # Beside version 1, version 2 may be mounted in a folder of its own.
            for root in (cgroups, cgroups / "unified"):
                yield from _limits_above(root, own, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_above(cgroups / "memory", own, "memory.limit_in_bytes")


def disk_free_bytes(home: Path) -> int:
    """Returns the free bytes of the file system on which ``home`` is or would be made."""
    return shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists())).free


def _limits_above(root: Path, own: str, name: str) -> Iterator[int]:
    group = root / own.strip("/")
    for each in (group, *group.parents):
        if each.is_relative_to(root):
            try:
                text = (each / name).read_text().strip()
            except OSError:  # not there: the root has no limit, and a container may see only its own group as the root
                continue
            if text.isdigit() and 0 < int(text) < NO_LIMIT_BYTES:
                yield int(text)
