"""A wall clock that another process can move: ``time.time`` plus the offset in a file.

``install`` replaces the functions of the module ``time`` before a node's own modules are imported. The monotonic clock
stays as it is, as when an administrator or NTP sets a machine's clock.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "CHAOS_CLOCK"  # the path of the file, in the environment of every process of a node
_OFFSET: Final = struct.Struct("<d")  # seconds


def set_offset(path: Path, seconds: float) -> None:
    """Moves the clock of every process that has installed ``path``. The file is created if it does not exist."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, _OFFSET.pack(seconds), 0)
    finally:
        os.close(descriptor)


def install() -> None:
    """Replaces ``time.time`` and ``time.time_ns`` by the clock that the environment names; does nothing without one."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    with Path(path).open("rb") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + _OFFSET.unpack_from(offset)[0]
    time.time_ns = lambda: true_time_ns() + int(_OFFSET.unpack_from(offset)[0] * 1e9)
