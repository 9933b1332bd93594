"""The memory that a node may use on this machine, as facts: no judgement, and no torch.

A node on a GPU trains on the device and keeps the rest in main memory; on a CPU everything is in main memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct

from node.configuration import DtypeName
from node.fit.footprint import Footprint
from node.fit.host_memory import CONTROL_GROUPS, PROC, control_group_limits, machine_bytes, process_limits
from node.fit.settings import DeviceKind

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


def host_limits(control_groups: Path = CONTROL_GROUPS, proc: Path = PROC) -> tuple[Limit, ...]:
    """Returns the machine's memory, and every limit under which this process runs."""
    groups = [Limit("control group", limit, LIMIT_SHARE) for limit in control_group_limits(control_groups, proc)]
    own = [Limit(name, limit, LIMIT_SHARE) for name, limit in process_limits().items()]
    return (Limit("machine", machine_bytes(), MACHINE_SHARE), *groups, *own)


def disk_free_bytes(home: Path) -> int:
    """Returns the free bytes of the file system on which ``home`` is or would be made."""
    return shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists())).free
