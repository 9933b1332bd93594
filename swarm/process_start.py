"""What every process that is a member of a swarm does at its start and its end: reads its settings and its membership,
and leaves on a signal. It imports no host and no service: what a process imports is most of its memory."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import anyio

from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from swarm.cluster.cluster_files import cluster_files, read_credentials
from swarm.cluster.membership import Membership
from swarm.settings import ServiceSettings

INPUT = 0  # the descriptor of standard input
KEPT_BYTES = 8 << 20  # of memory that was freed, at most
_SETTINGS_BYTES = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def first_line() -> bytes:
    """Returns the first line of standard input. Raises ``ConfigurationError`` if it is too long.

    It is read byte by byte from the descriptor: a buffer would also take what follows it.
    """
    line = bytearray()
    while len(line) < _SETTINGS_BYTES:
        byte = os.read(INPUT, 1)
        if byte in (b"", b"\n"):
            return bytes(line)
        line += byte
    raise ConfigurationError(f"the settings on standard input are longer than {_SETTINGS_BYTES} bytes")


def membership_of(settings: ServiceSettings, key: NodeKey) -> Membership | None:
    """Reads the node's membership of a private cluster from its data directory; None in an open swarm. On the owner's
    node the owner's key is there too."""
    if not settings.private:
        return None
    files = cluster_files(settings.home_path)
    credentials = read_credentials(files)
    if credentials.cluster.swarm_id != settings.swarm_id_bytes:
        raise ConfigurationError(
            f"{files.directory} belongs to another cluster than {settings.swarm_id}: restart the node"
        )
    owner = NodeKey.load(files.owner_key) if files.owner_key.exists() else None
    return Membership(key, credentials, wall_clock=time.time, keep=files.keep, owner=owner)


def keep_freed_memory() -> None:
    """Lets the process keep up to ``KEPT_BYTES`` that it freed, where its memory is glibc's.

    glibc would give the system back what each message took, and take it again for the next: a seventh of all processor
    time of a transfer. What exists by now is not looked through for garbage any more.
    """
    gc.freeze()
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


async def leave_on_signal(leave: Callable[[str], None]) -> None:
    """Calls ``leave`` with the reason at the first SIGTERM or SIGINT; a second one ends the process at once."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            leave(f"stopped by {signal.Signals(number).name}")
            break
    # Outside the receiver the default action applies again.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
