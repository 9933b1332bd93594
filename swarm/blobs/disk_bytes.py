"""What files take on the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

BLOCK_BYTES = 512  # the unit of ``st_blocks``


def disk_bytes(status: os.stat_result) -> int:
    """Returns the bytes of a file's blocks, and no less than its length: some file systems count blocks only later."""
    return max(status.st_blocks * BLOCK_BYTES, status.st_size)


def disk_bytes_of(path: Path) -> int:
    """Returns what the file takes, 0 if there is none."""
    try:
        return disk_bytes(path.stat())
    except OSError:
        return 0


def disk_bytes_below(folder: Path) -> int:
    """Returns what all files below ``folder`` take; one that is deleted meanwhile counts as none."""
    return sum(disk_bytes_of(Path(where) / name) for where, _, names in os.walk(folder) for name in names)


def blocks_below(folder: Path) -> int:
    """The same where files have holes, whose lengths say nothing."""
    found = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found += (Path(where) / name).stat().st_blocks * BLOCK_BYTES
    return found
