"""Connections through relays, from their two ends: reserving a place, dialling, and being dialled (circuit v2).

Within a circuit runs what runs over TCP: the pre-shared key and the door of a private cluster, Noise, Yamux. A host
takes circuits only from relays at which it holds a place, and ``HANDSHAKES`` unfinished ones at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
import trio
from libp2p.abc import IMuxedConn, INetConn
from libp2p.connection_types import ConnectionType
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, Status, StopMessage
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.errors import StarlingError, UnreachableError
from swarm.deadlines import deadline
from swarm.host import PeerId as PeerName
from swarm.host import Stream
from swarm.hosts.libp2p.containment import innermost_cause
from swarm.hosts.libp2p.relaying.circuit_messages import (
    CIRCUIT,
    HOP_PROTOCOL,
    SocketAddress,
    receive_message,
    send_message,
    unpacked,
)
from swarm.hosts.libp2p.relaying.relay import MESSAGE_SECONDS, refusal_text
from swarm.hosts.libp2p.relaying.relay_book import RESERVATION_SECONDS

HANDSHAKES: Final = 8
OpenStream = Callable[..., Awaitable[Stream]]


class CircuitStream(ReadWriteCloser):
    """A stream to a relay as the bytes of a connection; ``closed`` is set once it has ended."""

    def __init__(self, stream: Stream) -> None:
        self.closed = trio.Event()
        self._stream = stream

    async def read(self, n: int | None = None) -> bytes:
        try:
            return await self._stream.receive(n or 1 << 16)
        except StarlingError as error:
            raise ConnectionClosedError(str(error)) from error

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except (StarlingError, RuntimeError) as error:  # RuntimeError: closed by us meanwhile
            raise ConnectionClosedError(str(error)) from error

    async def close(self) -> None:
        self.closed.set()
        await self._stream.reset()

    def get_remote_address(self) -> tuple[str, int] | None:
        return None  # the relay's would stand for everybody behind it


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """A place at a relay, which ends with the connection over which it was taken."""

    address: str  # /ip4/…/tcp/…/p2p/RELAY/p2p-circuit
    ends_at_seconds: float  # of the clock of ``anyio.current_time``
    seen_at: SocketAddress | None  # where the relay sees us
    connection: INetConn


class Circuits:
    """The circuits of one host. ``on_relayed`` is called with a peer that has connected through a relay, and whether it
    dialled us."""

    def __init__(self, network: Swarm, open_stream: OpenStream, on_relayed: Callable[[PeerName, bool], None]) -> None:
        self.places: dict[PeerName, RelayPlace] = {}  # by relay
        self.seen_at: dict[PeerName, SocketAddress] = {}  # where the relay sees the peers that are connected through it
        self._network = network
        self._open_stream = open_stream
        self._on_relayed = on_relayed
        self._handshakes = trio.CapacityLimiter(HANDSHAKES)

    async def reserve(
        self, relay: PeerName, relay_address: str, connection: INetConn, deadline_seconds: float
    ) -> float:
        """Takes or renews a place at a relay, to which ``connection`` stands; returns its seconds.

        Raises ``TransportError``.
        """
        with deadline(deadline_seconds, f"reserving at {relay}"):
            reply = await self._ask(relay, HopMessage(type=HopMessage.RESERVE))
        seen = unpacked(reply.peer.addrs)
        ends_at_seconds = anyio.current_time() + RESERVATION_SECONDS
        seen_at = seen[0] if seen else None
        self.places[relay] = RelayPlace(f"{relay_address}{CIRCUIT}", ends_at_seconds, seen_at, connection)
        return RESERVATION_SECONDS

    async def _ask(self, relay: PeerName, message: HopMessage) -> HopMessage:
        stream = await self._open_stream(relay, HOP_PROTOCOL, deadline_seconds=MESSAGE_SECONDS)
        try:
            reply = await self._exchange(stream, message)
            await stream.finish(linger_seconds=0.0)
        except BaseException:
            await stream.reset()
            raise
        return reply

    async def _exchange(self, stream: Stream, message: HopMessage) -> HopMessage:
        await send_message(stream, message)
        reply = await receive_message(stream, HopMessage)
        if reply.type != HopMessage.STATUS or reply.status != Status.OK:
            raise UnreachableError(f"the relay {stream.peer} refused: {refusal_text(reply.status)}")
        return reply

    async def dial(self, relay: PeerName, peer: ID) -> None:
        """Connects to ``peer`` through a connected relay. Raises ``TransportError``, or what the library raises."""
        stream = await self._open_stream(relay, HOP_PROTOCOL, deadline_seconds=MESSAGE_SECONDS)
        circuit = CircuitStream(stream)
        try:
            reply = await self._exchange(stream, HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=peer.to_bytes())))
            self._note_seen(str(peer), reply.peer)
            await self._network.upgrade_outbound_raw_conn(_raw(circuit, relay, is_initiator=True), peer)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await circuit.close()
            raise
        self._on_relayed(str(peer), False)

    async def on_stop(self, stream: Stream) -> None:
        """Serves one stream of ``STOP_PROTOCOL``: a relay offers a connection. Returns when it has ended."""
        with deadline(MESSAGE_SECONDS, f"reading what the relay {stream.peer} offers"):
            offer = await receive_message(stream, StopMessage)
        place = self.places.get(stream.peer)
        is_expected = place is not None and offer.type == StopMessage.CONNECT
        if not is_expected or not self._handshakes.available_tokens:
            refusal = Status.RESOURCE_LIMIT_EXCEEDED if is_expected else Status.PERMISSION_DENIED
            await send_message(stream, StopMessage(type=StopMessage.STATUS, status=refusal))
            return
        circuit = CircuitStream(stream)
        try:
            async with self._handshakes:
                await send_message(stream, StopMessage(type=StopMessage.STATUS, status=Status.OK))
                muxed = await self._upgraded(_raw(circuit, stream.peer, is_initiator=False), stream.peer)
            peer = str(muxed.peer_id)
            if offer.peer.id == muxed.peer_id.to_bytes():
                self._note_seen(peer, offer.peer)
            self._on_relayed(peer, True)
            await circuit.closed.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await circuit.close()

    async def _upgraded(self, raw: RawConnection, relay: PeerName) -> IMuxedConn:
        try:
            return await self._network.upgrade_inbound_raw_conn(raw, Multiaddr(f"/p2p/{relay}{CIRCUIT}"))
        except Exception as error:  # the library's handshake with a stranger
            raise UnreachableError(f"no connection through {relay}: {innermost_cause(error)}") from error

    def _note_seen(self, peer: PeerName, seen: PeerId) -> None:
        connected = {str(each) for each in self._network.connections}
        self.seen_at = {each: at for each, at in self.seen_at.items() if each in connected}
        addresses = unpacked(seen.addrs)
        if addresses:
            self.seen_at[peer] = addresses[0]


def _raw(circuit: CircuitStream, relay: PeerName, *, is_initiator: bool) -> RawConnection:
    through = [Multiaddr(f"/p2p/{relay}{CIRCUIT}")]
    return RawConnection(circuit, is_initiator, connection_type=ConnectionType.RELAYED, addresses=through)
