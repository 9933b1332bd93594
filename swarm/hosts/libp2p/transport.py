"""TCP + Noise + Yamux for py-libp2p, with what the library's own classes lack.

- Every byte over the sockets is counted, including handshakes and all overhead (``Meter``), and may be held back by a
  limit of the owner (``Bandwidth``).
- A port that is taken is an error. The library listens with SO_REUSEPORT, with which a second node on the same port
  would silently receive half of the first node's connections.
- An incoming connection releases its slot when it ends. The library holds the slot as long as the host runs, and so
  would accept no more connections after the first three hundred.
- Connections that have not finished their handshake take no slot of those that have: they wait in a ``Doorway``. The
  library has one limit for both, so that as many silent sockets kept everybody out.
- Only Noise and Yamux are offered; the library's default would also accept plaintext.
- With a handshake (``swarm.cluster.handshake``), everything runs inside ``libp2p_private``, and the handshake runs
  after Noise and before Yamux: a peer that is not admitted never becomes a connection, so that no service of the
  library hears of it. Refusals are counted as "private network" and "handshake".
- No read asks for more than ``READ_BYTES`` at once. The library asks for as many bytes as a stranger's length claims,
  and allocates the buffer before the first byte arrives.
- A dial may leave from the listening port, which hole punching needs (``MeteredTcp``). So the port can be shared once
  it was taken, by dials of this user's processes; another listener is still refused.
- Blocked peers are refused during the upgrade, so that their dial fails instead of succeeding for a moment. So is a
  connection beyond ``CONNECTIONS_PER_PEER``, which the library takes and closes after some twenty seconds.
- A connection ends once what was sent over it is not acknowledged for ``UNACKNOWLEDGED_SECONDS``: a ping is sent every
  30 s. The library would keep that of a machine which is gone for a quarter of an hour, and with it the peer's place.
"""

from __future__ import annotations

import errno
import ipaddress
import math
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import trio
from libp2p.abc import IListener, IMuxedConn, IRawConnection, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectClientError, MultiselectError
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from libp2p.transport.exceptions import MuxerUpgradeFailure, OpenConnectionError, SecurityUpgradeFailure
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.errors import StarlingError, UnreachableError
from swarm.cluster.handshake import perform_handshake
from swarm.host import Handshake
from swarm.hosts.libp2p.bandwidth import Bandwidth
from swarm.hosts.libp2p.containment import PEER_FAILURES, Failures, innermost_cause
from swarm.hosts.libp2p.doorway import FIRST_BYTES_SECONDS, Doorway
from swarm.hosts.libp2p.private_network import PrivateConnection, PrivateNetworkError
from swarm.hosts.libp2p.yamux import SteadyYamux

FIRST_BYTES = 16  # of what the other end sends: enough to tell text from a greeting and from a private cluster's nonce
LEAST_TEXT_BYTES = 5
TEXT_BYTES = frozenset(b"\t\r\n") | frozenset(range(0x20, 0x7F))
NO_NODE = "plain text answers there, as from a web server, and no starling node: check the port"
READ_BYTES = 1 << 16  # no less than the longest message of Noise
WAKE_BYTES = 1 << 15  # far below any receive buffer, so that the window never closes before it is reached
WHOLE_READ_BYTES = 2048  # a read of so many bytes or more needs all of them
NOISE_PAYLOAD_BYTES = 1 << 15  # of one message of Noise, which holds 65,519 at most
CONNECTIONS_PER_PEER = 3
UNACKNOWLEDGED_SECONDS = 60.0
CLOSE_SECONDS = 0.3  # for the library to clean up after a connection, before its task is cancelled

StreamHandler = Callable[[TrioTCPStream], Awaitable[None]]


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
        await super().write(data)
        self._meter.sent_bytes += len(data)

    async def read(self, n: int | None = None) -> bytes:
        self._wake_for(n)
        data = await super().read(None if n is None else min(n, READ_BYTES))
        self._meter.received_bytes += len(data)
        await self._meter.bandwidth.after_receiving(len(data))
        if len(self._first_bytes) < FIRST_BYTES:
            self._first_bytes += data[: FIRST_BYTES - len(self._first_bytes)]
        return data

    @property
    def has_answered_in_text(self) -> bool:
        """Whether what the other end sent first is plain text, as a web server sends it."""
        return len(self._first_bytes) >= LEAST_TEXT_BYTES and all(byte in TEXT_BYTES for byte in self._first_bytes)

    def _wake_for(self, n: int | None) -> None:
        """Sets after how many bytes the system wakes us: up to ``WAKE_BYTES`` of a long read, not every packet.

        A read of 2 kB or more is the rest of one Noise message, all of which the caller waits for. The end of the
        connection wakes us too.
        """
        wake_bytes = 1 if n is None or n < WHOLE_READ_BYTES else min(n, WAKE_BYTES)
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            with suppress(OSError):  # closed: the read that follows raises
                self.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVLOWAT, wake_bytes)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self.closed.set()
            self._meter.open.discard(self)

    async def is_spoken_to(self) -> bool:
        """Waits until the other end has sent something, which stays unread; returns False if it ends without."""
        try:
            return bool(await self.stream.socket.recv(1, trio.socket.MSG_PEEK))
        except (OSError, trio.ClosedResourceError):
            return False

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


class OtherProtocolError(RawConnError):
    """The other end speaks no libp2p."""


class Listener(IListener):
    """Accepts connections on one address. ``listen`` takes the address, ``serve`` accepts until cancelled or closed."""

    def __init__(self, handler: StreamHandler, meter: Meter, doorway: Doorway, failures: Failures) -> None:
        self._handler = handler
        self._meter = meter
        self._doorway = doorway
        self._failures = failures
        self._scope = trio.CancelScope()
        self._sockets: Sequence[trio.SocketListener] = ()
        self._addresses: tuple[Multiaddr, ...] = ()

    async def listen(self, maddr: Multiaddr) -> None:
        """Raises ``OSError`` if the address cannot be taken."""
        self._sockets = await trio.open_tcp_listeners(int(_value(maddr, "tcp")), host=_ip(maddr))
        self._addresses = tuple(_socket_address(listener.socket) for listener in self._sockets)
        for listener in self._sockets:
            share_port(listener.socket)

    async def serve(self) -> None:
        with self._scope:
            await trio.serve_listeners(self._on_socket, list(self._sockets))

    async def _on_socket(self, stream: trio.SocketStream) -> None:
        socket = MeteredSocket(stream, self._meter)
        spoken_to = False
        with trio.move_on_after(FIRST_BYTES_SECONDS), self._doorway.silent.place_for(socket):
            spoken_to = await socket.is_spoken_to()
        if not spoken_to:
            socket.drop()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._handle, socket, nursery.cancel_scope)
            await socket.closed.wait()
            await trio.sleep(CLOSE_SECONDS)
            nursery.cancel_scope.cancel()

    async def _handle(self, socket: MeteredSocket, accepted: trio.CancelScope) -> None:
        try:
            with self._doorway.handshaking.place_for(
                socket
            ):  # given back in ``DoorwayNetwork``, once the handshake is over
                await self._handler(socket)
        except Exception as error:  # noqa: BLE001  the library's handshake with a stranger
            self._failures.note("incoming connection", error)
        accepted.cancel()
        await socket.close()

    def get_addrs(self) -> tuple[Multiaddr, ...]:
        return self._addresses

    async def close(self) -> None:
        self._scope.cancel()
        for socket in self._sockets:
            await socket.aclose()


class DoorwayNetwork(Swarm):
    """The library's network; only connections that have finished their handshake count against its limit."""

    def __init__(self, *arguments: Any, doorway: Doorway, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_direct: Callable[[SwarmConn], None] = lambda connection: None  # a connection not through a relay stands
        self._doorway = doorway
        self._inbound_limiter = trio.CapacityLimiter(math.inf)  # ``max_connections`` holds when one is registered

    async def upgrade_inbound_raw_conn(self, raw_conn: IRawConnection, maddr: Multiaddr) -> IMuxedConn:
        connection = await super().upgrade_inbound_raw_conn(raw_conn, maddr)
        if isinstance(raw_conn, RawConnection) and isinstance(raw_conn.stream, MeteredSocket):
            self._doorway.handshaking.leave(raw_conn.stream)
        return connection

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        """Notes whether the connection is relayed, which the library does not find out through Noise."""
        connection = await super().add_conn(muxed_conn, direction)
        is_relayed = cast(SteadyYamux, muxed_conn).get_remote_address() is None
        kind = ConnectionType.RELAYED if is_relayed else ConnectionType.DIRECT
        connection.set_transport_info(connection.get_transport_addresses(), kind)
        if not is_relayed:
            self.on_direct(connection)
        return connection


class MeteredTcp(TCP):
    """The library's TCP dialling, over counted sockets. ``Listener`` listens.

    ``source_of`` returns the address from which to dial an IP address; None takes any free port. A port that is already
    connected there, or was a moment ago, is replaced by a free one.
    """

    def __init__(self, meter: Meter, source_of: Callable[[str], tuple[str, int] | None]) -> None:
        super().__init__()
        self._meter = meter
        self._source_of = source_of

    async def _dial_resolved(self, maddr: Multiaddr, source: tuple[str, int] | None = None) -> IRawConnection:
        ip, port = _ip(maddr), int(_value(maddr, "tcp"))
        usual = self._source_of(ip) if source is None else None
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

    async def dial_anew(self, maddr: Multiaddr) -> IRawConnection:
        """Dials from a free port, whatever ``source_of`` says. Raises ``OSError``, ``OpenConnectionError``."""
        stream = await trio.open_tcp_stream(_ip(maddr), int(_value(maddr, "tcp")))
        return RawConnection(MeteredSocket(stream, self._meter), True)


def share_port(socket: trio.socket.SocketType) -> None:
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


class Upgrader(TransportUpgrader):
    """Noise, then Yamux. In a private cluster both run under its pre-shared key, and its handshake between them."""

    def __init__(
        self,
        key_pair: KeyPair,
        blocked: Container[ID],
        handshake: Handshake | None,
        meter: Meter,
        failures: Failures,
    ) -> None:
        noise = NoiseTransport(key_pair, noise_privkey=create_noise_key_pair().private_key)
        super().__init__({NOISE_PROTOCOL: noise}, {TProtocol(YAMUX_PROTOCOL): SteadyYamux})
        self._blocked = blocked
        self._handshake = handshake
        self._meter = meter
        self._failures = failures

    async def upgrade_security(
        self, raw_conn: IRawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> ISecureConn:
        socket = raw_conn.stream if isinstance(raw_conn, RawConnection) else None
        if self._handshake is not None:
            raw_conn = PrivateConnection(raw_conn, self._handshake.keys())
        try:
            connection = await super().upgrade_security(raw_conn, is_initiator, peer_id)
        except SecurityUpgradeFailure as failure:
            if isinstance(innermost_cause(failure), PrivateNetworkError):
                self._failures.note("private network", failure)
            elif isinstance(socket, MeteredSocket) and socket.has_answered_in_text:
                raise SecurityUpgradeFailure("no libp2p") from OtherProtocolError(NO_NODE)
            raise
        except ValueError as error:  # the library decodes a greeting as text without a check
            raise SecurityUpgradeFailure("the first bytes are no greeting of libp2p") from error
        peer = connection.get_remote_peer()
        if peer in self._blocked:
            await connection.close()
            raise SecurityUpgradeFailure(f"{peer} is blocked here")
        if isinstance(socket, MeteredSocket):
            if not is_initiator and self._meter.connections_of(peer) >= CONNECTIONS_PER_PEER:
                self._failures.note("surplus connection", ConnectionAbortedError(f"{peer} has {CONNECTIONS_PER_PEER}"))
                await connection.close()
                raise SecurityUpgradeFailure(f"{peer} has {CONNECTIONS_PER_PEER} connections already")
            socket.peer = peer
        if self._handshake is not None:
            await self._perform_handshake(self._handshake, connection, is_initiator)
        return connection

    async def _perform_handshake(self, handshake: Handshake, connection: ISecureConn, is_initiator: bool) -> None:
        async def send(frame: bytes) -> None:
            for start in range(0, len(frame), NOISE_PAYLOAD_BYTES):
                await connection.write(frame[start : start + NOISE_PAYLOAD_BYTES])

        async def receive(size: int) -> bytes:
            received = await connection.read(size)
            if len(received) < size:
                raise UnreachableError("the other end closed the connection in the handshake")
            return received

        try:
            await perform_handshake(handshake, str(connection.get_remote_peer()), send, receive, dialled=is_initiator)
        except (StarlingError, *PEER_FAILURES) as error:
            self._failures.note("handshake", error)
            await connection.close()
            raise SecurityUpgradeFailure("not admitted") from error

    async def upgrade_connection(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        try:
            await self.muxer_multistream.select_transport(conn)
        except (MultiselectError, MultiselectClientError) as error:
            raise MuxerUpgradeFailure("no common stream multiplexer") from error
        return SteadyYamux(conn, peer_id, is_initiator=conn.is_initiator)


def _value(maddr: Multiaddr, protocol: str) -> str:
    return str(maddr.value_for_protocol(protocol))


def _ip(maddr: Multiaddr) -> str:
    kind: Any = maddr.protocols()[0].name
    if kind not in ("ip4", "ip6"):
        raise OpenConnectionError(f"{maddr} has no IP address")
    return _value(maddr, kind)


def _socket_address(socket: trio.socket.SocketType) -> Multiaddr:
    host, port = socket.getsockname()[:2]
    return Multiaddr(f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}")
