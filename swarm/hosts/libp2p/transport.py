"""TCP sockets for py-libp2p, and dialling over them, with what the library's own classes lack.

- Every byte over the sockets is counted, including handshakes and all overhead (``Meter``), and may be held back by a
  limit of the owner (``Bandwidth``).
- No read asks for more than ``READ_BYTES`` at once. The library asks for as many bytes as a stranger's length claims,
  and allocates the buffer before the first byte arrives.
- A dial may leave from the listening port, which hole punching needs (``MeteredTcp``). So the port can be shared once
  it was taken, by dials of this user's processes; another listener is still refused.
- A connection ends once what was sent over it is not acknowledged for ``UNACKNOWLEDGED_SECONDS``: a ping is sent every
  30 s. The library would keep that of a machine which is gone for a quarter of an hour, and with it the peer's place.
"""

from __future__ import annotations

import errno
import os
import socket as stdlib_socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio
from libp2p.abc import IRawConnection
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.transport.exceptions import OpenConnectionError
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from swarm.hosts.bandwidth import Bandwidth

FIRST_BYTES = 16  # of what the other end sends: enough to tell text from a greeting and from a private cluster's nonce
LEAST_TEXT_BYTES = 5
TEXT_BYTES = frozenset(b"\t\r\n") | frozenset(range(0x20, 0x7F))
READ_BYTES = 1 << 17  # no less than the longest message of Noise
# Far below any receive buffer, so that the window never closes before it is reached; Linux makes room for so many.
WAKE_BYTES = 1 << 16 if sys.platform == "linux" else 1 << 15
LEAST_WAKE_BYTES = 2048  # less than that is worth no call that asks to be woken later
CONNECTIONS_PER_PEER = 3  # ``connecting.upgrading`` refuses further ones
UNACKNOWLEDGED_SECONDS = 30.0  # a router that forgot a connection is silent; a peer is dialled again soon after


async def acquire_at_once(lock: trio.Lock) -> None:
    """Takes a lock; without a turn of the loop where it is free."""
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        await lock.acquire()


@dataclass(slots=True)
class Meter:
    """Bytes over all sockets of a host, and the sockets that are open."""

    sent_bytes: int = 0
    received_bytes: int = 0
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    open: set[MeteredSocket] = field(default_factory=set)

    def connections_of(self, peer: ID) -> int:
        return sum(socket.peer == peer for socket in self.open)

    async def close_all(self) -> None:
        for socket in list(self.open):
            await trio.aclose_forcefully(socket.stream)
            self.open.discard(socket)


class MeteredSocket(TrioTCPStream):
    """A socket that counts its bytes. ``closed`` is set when it closes, ``peer`` once its peer has proved its key."""

    def __init__(self, stream: trio.SocketStream, meter: Meter) -> None:
        super().__init__(stream)
        self.closed = trio.Event()
        self.peer: ID | None = None
        self._meter = meter
        self._wake_bytes = 1
        self._first_bytes = b""
        meter.open.add(self)
        if hasattr(trio.socket, "TCP_USER_TIMEOUT"):  # Linux
            milliseconds = int(UNACKNOWLEDGED_SECONDS * 1000)
            with suppress(OSError):  # closed already: the read that follows raises
                stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_USER_TIMEOUT, milliseconds)

    async def write(self, data: bytes) -> None:
        await self._meter.bandwidth.before_sending(len(data))
        await acquire_at_once(self.write_lock)
        try:
            await self.stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise ConnectionClosedError(f"the peer broke the connection: {error}", transport="tcp") from error
        except trio.ClosedResourceError:
            pass  # by us, as in the library
        finally:
            self.write_lock.release()
        self._meter.sent_bytes += len(data)

    async def read(self, n: int | None = None) -> bytes:
        size = READ_BYTES if n is None else min(n, READ_BYTES)
        await acquire_at_once(self.read_lock)
        try:
            data = await self._read_woken(size) if self._wake_bytes > 1 else None
            if data is None:
                data = bytes(await self.stream.receive_some(size))
        except trio.BrokenResourceError as error:
            raise ConnectionClosedError(f"the peer broke the connection: {error}", transport="tcp") from error
        except trio.ClosedResourceError:
            return b""  # by us, as in the library
        finally:
            self.read_lock.release()
        self._meter.received_bytes += len(data)
        await self._meter.bandwidth.after_receiving(len(data))
        if len(self._first_bytes) < FIRST_BYTES:
            self._first_bytes += data[: FIRST_BYTES - len(self._first_bytes)]
        return data

    async def _read_woken(self, size: int) -> bytes | None:
        """Waits until as much is here as ``wake_for`` said, and reads; None leaves all else to trio.

        trio would first read the few bytes that happen to be here, which is a turn of the loop, and wait then.
        """
        try:
            await trio.lowlevel.wait_readable(self.stream.socket.fileno())
            return os.read(self.stream.socket.fileno(), size)
        except OSError:
            return None

    @property
    def has_answered_in_text(self) -> bool:
        """Whether what the other end sent first is plain text, as a web server sends it."""
        return len(self._first_bytes) >= LEAST_TEXT_BYTES and all(byte in TEXT_BYTES for byte in self._first_bytes)

    def wake_for(self, missing_bytes: int) -> None:
        """Says of how many bytes a reader needs all: the system wakes it for ``WAKE_BYTES`` of them, not every packet.

        It stays so until it is said again. The end of the connection wakes the reader too.
        """
        wake_bytes = 1 if missing_bytes < LEAST_WAKE_BYTES else min(missing_bytes, WAKE_BYTES)
        if wake_bytes != self._wake_bytes:
            with suppress(OSError):  # closed, or a system without it: the read that follows raises, or waits for a byte
                self.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVLOWAT, wake_bytes)
                self._wake_bytes = wake_bytes

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self.closed.set()
            self._meter.open.discard(self)

    def drop(self) -> None:
        """Closes the socket at once; what waits for it fails."""
        self.stream.socket.close()
        self.closed.set()
        self._meter.open.discard(self)

    def get_remote_address(self) -> tuple[str, int] | None:
        try:
            host, port = self.stream.socket.getpeername()[:2]
        except OSError:
            return None
        return str(host), int(port)


class MeteredTcp(TCP):
    """The library's TCP dialling, over counted sockets. ``connecting.listening`` listens.

    ``source_of`` returns the address from which to dial an IP address; None takes any free port. A port that is already
    connected there, or was a moment ago, is replaced by a free one.
    """

    def __init__(self, meter: Meter, source_of: Callable[[str], tuple[str, int] | None]) -> None:
        super().__init__()
        self._meter = meter
        self._source_of = source_of

    async def _dial_resolved(self, maddr: Multiaddr, source: tuple[str, int] | None = None) -> IRawConnection:
        ip, port = ip_of(maddr), tcp_port_of(maddr)
        usual = self.usual_source(maddr) if source is None else None
        try:
            if source is not None:
                stream = await _open_from(source, ip, port)
            elif usual is not None:
                stream = await _open_from_if_free(usual, ip, port)
            else:
                stream = await trio.open_tcp_stream(ip, port)
        except OSError as error:
            raise OpenConnectionError(str(error)) from error
        return RawConnection(MeteredSocket(stream, self._meter), True)

    def usual_source(self, maddr: Multiaddr) -> tuple[str, int] | None:
        """Returns the address from which ``maddr`` is dialled; None for any free port."""
        return self._source_of(ip_of(maddr))

    async def dial_anew(self, maddr: Multiaddr) -> IRawConnection:
        """Dials from a free port, whatever ``source_of`` says. Raises ``OSError``, ``OpenConnectionError``."""
        stream = await trio.open_tcp_stream(ip_of(maddr), tcp_port_of(maddr))
        return RawConnection(MeteredSocket(stream, self._meter), True)


def share_port(socket: trio.socket.SocketType | stdlib_socket.socket) -> None:
    """Lets dials leave from the port of a listening socket, where the system can share one."""
    with suppress(OSError, AttributeError):
        socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEPORT, 1)


async def _open_from(source: tuple[str, int], ip: str, port: int) -> trio.SocketStream:
    family = trio.socket.AF_INET6 if ":" in ip else trio.socket.AF_INET
    socket = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        share_port(socket)
        await socket.bind(source)
        await socket.connect((ip, port))
        return trio.SocketStream(socket)
    except BaseException:
        socket.close()
        raise


async def _open_from_if_free(source: tuple[str, int], ip: str, port: int) -> trio.SocketStream:
    try:
        return await _open_from(source, ip, port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise
    return await trio.open_tcp_stream(ip, port)


def ip_of(maddr: Multiaddr) -> str:
    """Returns the IP address with which a multiaddr begins. Raises ``OpenConnectionError`` if it begins with none."""
    kind: Any = maddr.protocols()[0].name
    if kind not in ("ip4", "ip6"):
        raise OpenConnectionError(f"{maddr} has no IP address")
    return str(maddr.value_for_protocol(kind))


def tcp_port_of(maddr: Multiaddr) -> int:
    return int(str(maddr.value_for_protocol("tcp")))
