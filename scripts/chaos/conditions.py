"""What another process can change of the machine that a node sees: its wall clock, its disk, its name servers.

``install`` replaces functions before a node's own modules are imported: those of the module ``time`` return the time
plus an offset, each opening, renaming and flushing of a file of the node takes so long, and the names of the other
nodes lead where they should, or elsewhere. The monotonic clock stays as it is, as when an administrator or NTP sets a
machine's clock. The conditions are in a file, which is named as the node's data directory with ``SUFFIX``.
"""

from __future__ import annotations

import builtins
import io
import json
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "CHAOS_CONDITIONS"  # the path of the file, in the environment of every process of a node
SUFFIX: Final = ".conditions"
_ONE: Final = struct.Struct("<d")
NAMES_VARIABLE: Final = "CHAOS_NAMES"  # a JSON object, the IP address of each node's name
UNANSWERED_SECONDS: Final = 5.0  # until a resolver gives up
NOBODY: Final = "127.0.0.77"
MANY: Final = 300


class Condition(IntEnum):
    """What the file holds a number for, in this order."""

    CLOCK = 0  # seconds by which the clock is ahead
    DISK = 1  # seconds more that each opening, renaming and flushing of a file of the node takes
    NAMES = 2  # a ``Lie``


class Lie(IntEnum):
    """What the machine's name servers say of a node's name."""

    NONE = 0
    ANOTHER_NODE = 1
    NOBODY = 2  # an address where nobody listens
    NO_ANSWER = 3
    MANY = 4  # hundreds of addresses, the right one last
    NO_SUCH_NAME = 5


def prepare(path: Path) -> None:
    """Makes the file: the true time, the disk as fast as it is, and names that lead where they should."""
    path.write_bytes(bytes(len(Condition) * _ONE.size))


def put(path: Path, condition: Condition, value: float) -> None:
    """Puts every process that has installed ``path`` under a condition; 0.0 ends it."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, _ONE.pack(value), condition * _ONE.size)
    finally:
        os.close(descriptor)


def install() -> None:
    """Puts this process under the conditions that the environment names; does nothing where it names none."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    with Path(path).open("rb") as file:
        conditions = mmap.mmap(file.fileno(), len(Condition) * _ONE.size, access=mmap.ACCESS_READ)

    def read(condition: Condition) -> float:
        return float(_ONE.unpack_from(conditions, condition * _ONE.size)[0])

    _install_clock(lambda: read(Condition.CLOCK))
    _install_disk(path.removesuffix(SUFFIX) + os.sep, lambda: read(Condition.DISK))
    _install_names(json.loads(os.environ.get(NAMES_VARIABLE, "{}")), lambda: Lie(int(read(Condition.NAMES))))


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


def _install_names(address_of: Mapping[str, str], lie: Callable[[], Lie]) -> None:
    truly_asked = socket.getaddrinfo

    def asked(host: Any, port: Any, *arguments: Any, **how: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in address_of:
            return truly_asked(host, port, *arguments, **how)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port or 0))
            for address in told(address_of, name, lie())
        ]

    socket.getaddrinfo = asked


def told(address_of: Mapping[str, str], name: str, lie: Lie) -> Sequence[str]:
    """Returns what the name servers say. Raises ``socket.gaierror`` where they say nothing."""
    if lie is Lie.NO_ANSWER:
        time.sleep(UNANSWERED_SECONDS)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    if lie is Lie.NO_SUCH_NAME:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    if lie is Lie.ANOTHER_NODE:
        names = sorted(address_of)
        return [address_of[names[(names.index(name) + 1) % len(names)]]]
    if lie is Lie.NOBODY:
        return [NOBODY]
    wrong = [f"127.0.{1 + n // 250}.{1 + n % 250}" for n in range(MANY)] if lie is Lie.MANY else []
    return [*wrong, address_of[name]]
