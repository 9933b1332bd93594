"""What another process can change of the machine that a node sees: its wall clock, and how slow its disk is.

``install`` replaces functions before a node's own modules are imported: those of the module ``time`` return the time
plus an offset, and each opening, renaming and flushing of a file of the node takes so long. The monotonic clock stays
as it is, as when an administrator or NTP sets a machine's clock. The conditions are in a file, which is named as the
node's data directory with ``SUFFIX``.
"""

from __future__ import annotations

import builtins
import io
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "CHAOS_CONDITIONS"  # the path of the file, in the environment of every process of a node
SUFFIX: Final = ".conditions"
_ONE: Final = struct.Struct("<d")  # seconds
_CLOCK, _DISK, _BYTES = 0, _ONE.size, 2 * _ONE.size


def prepare(path: Path) -> None:
    """Makes the file: the true time, and the disk as fast as it is."""
    path.write_bytes(bytes(_BYTES))


def set_clock(path: Path, offset_seconds: float) -> None:
    """Moves the clock of every process that has installed ``path``."""
    _write(path, _CLOCK, offset_seconds)


def set_disk(path: Path, seconds: float) -> None:
    """Has each opening, renaming and flushing of a file of the node take ``seconds`` more."""
    _write(path, _DISK, seconds)


def _write(path: Path, at: int, value: float) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, _ONE.pack(value), at)
    finally:
        os.close(descriptor)


def install() -> None:
    """Puts this process under the conditions that the environment names; does nothing where it names none."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    with Path(path).open("rb") as file:
        conditions = mmap.mmap(file.fileno(), _BYTES, access=mmap.ACCESS_READ)
    _install_clock(lambda: float(_ONE.unpack_from(conditions, _CLOCK)[0]))
    _install_disk(path.removesuffix(SUFFIX) + os.sep, lambda: float(_ONE.unpack_from(conditions, _DISK)[0]))


def _install_clock(offset_seconds: Callable[[], float]) -> None:
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + offset_seconds()
    time.time_ns = lambda: true_time_ns() + int(offset_seconds() * 1e9)


def _install_disk(home: str, disk_seconds: Callable[[], float]) -> None:
    def slowed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *arguments: Any, **how: Any) -> Any:
            seconds = disk_seconds()
            if seconds and (function is true_fsync or str(file).startswith(home)):
                time.sleep(seconds)
            return function(file, *arguments, **how)

        return call

    true_fsync = os.fsync
    os.fsync = slowed(true_fsync)
    os.open, os.replace = slowed(os.open), slowed(os.replace)
    io.open = builtins.open = slowed(io.open)
