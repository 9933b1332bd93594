"""A relay: gives connected peers a place, and passes the bytes of others on to them (circuit v2, ``hop``).

It sees the two ends and encrypted bytes: Noise, and in a private cluster its door, run between the ends. It serves only
peers that ``admits`` accepts, and only over direct connections. Along with a status it tells either end at which
address it sees the other (``peer.addrs``), and a peer that reserves at which address it sees that peer: hole punching
dials no other address.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Limit, PeerId, Reservation, Status, StopMessage

from protocol.errors import StarlingError
from protocol.identity import PEER_ID_BYTES
from swarm.deadlines import deadline
from swarm.host import PeerId as PeerName
from swarm.host import Stream
from swarm.hosts.libp2p.relaying.circuit_messages import (
    STOP_PROTOCOL,
    SocketAddress,
    packed,
    receive_message,
    send_message,
)
from swarm.hosts.libp2p.relaying.relay_book import (
    CIRCUIT_BYTES,
    CIRCUIT_SECONDS,
    RESERVATION_SECONDS,
    Circuit,
    RelayBook,
)

MESSAGE_SECONDS: Final = 10.0
PIECE_BYTES: Final = 32 << 10
STALL_SECONDS: Final = 30.0  # for one end to take a piece

OpenStream = Callable[..., Awaitable[Stream]]


class Relay:
    """``on_stream`` serves one stream of ``HOP_PROTOCOL``. ``seen_at`` returns the address of a peer that is connected
    directly, None otherwise; ``open_stream`` is the host's."""

    def __init__(
        self, open_stream: OpenStream, seen_at: Callable[[PeerName], SocketAddress | None],
    ) -> None:  # fmt: skip
        self.book = RelayBook()
        self.admits: Callable[[PeerName], bool] | None = None  # None: this host is no relay
        self._open_stream = open_stream
        self._seen_at = seen_at

    async def on_stream(self, stream: Stream) -> None:
        with deadline(MESSAGE_SECONDS, f"reading what {stream.peer} asks of the relay"):
            asked = await receive_message(stream, HopMessage)
        seen_at = self._seen_at(stream.peer)
        if self.admits is None or seen_at is None or not self.admits(stream.peer):
            await _refuse(stream, Status.PERMISSION_DENIED)
        elif asked.type == HopMessage.RESERVE:
            await self._reserve(stream, seen_at)
        elif asked.type == HopMessage.CONNECT:
            await self._connect(stream, seen_at, asked)
        else:
            await _refuse(stream, Status.UNEXPECTED_MESSAGE)

    async def _reserve(self, stream: Stream, seen_at: SocketAddress) -> None:
        self.drop_departed()
        if not self.book.reserve(stream.peer, stream.network, anyio.current_time()):
            await _refuse(stream, Status.RESERVATION_REFUSED)
            return
        ends_at_seconds = math.floor(time.time() + RESERVATION_SECONDS)
        await _send(
            stream,
            HopMessage(
                type=HopMessage.STATUS,
                status=Status.OK,
                reservation=Reservation(expire=ends_at_seconds),
                limit=_limit(),
                peer=_seen(stream.peer, seen_at),
            ),
        )

    def drop_departed(self) -> None:
        """Ends the reservations of peers that are no longer connected directly."""
        for peer in self.book.reserved():
            if self._seen_at(peer) is None:
                self.book.release(peer)

    async def _connect(self, stream: Stream, seen_at: SocketAddress, asked: HopMessage) -> None:
        now_seconds = anyio.current_time()
        if len(asked.peer.id) > PEER_ID_BYTES:
            await _refuse(stream, Status.NO_RESERVATION)
            return
        target = str(ID(asked.peer.id))
        target_at = self._seen_at(target)
        if not self.book.is_reserved(target, now_seconds) or target_at is None:
            await _refuse(stream, Status.NO_RESERVATION)
            return
        circuit = self.book.open(stream.peer, target, now_seconds)
        if circuit is None:
            await _refuse(stream, Status.RESOURCE_LIMIT_EXCEEDED)
            return
        try:
            onward = await self._open_onward(target, stream.peer, seen_at)
            if onward is None:
                await _refuse(stream, Status.CONNECTION_FAILED)
                return
            try:
                agreed = HopMessage(
                    type=HopMessage.STATUS, status=Status.OK, limit=_limit(), peer=_seen(target, target_at)
                )
                await _send(stream, agreed)
                await self._pass_both_ways(circuit, stream, onward)
            finally:
                await onward.reset()
        finally:
            self.book.close(circuit)
        await stream.reset()

    async def _open_onward(self, target: PeerName, source: PeerName, seen_at: SocketAddress) -> Stream | None:
        """Returns a stream on which the target has agreed to the connection, or None."""
        try:
            onward = await self._open_stream(target, STOP_PROTOCOL, deadline_seconds=MESSAGE_SECONDS)
        except StarlingError:
            return None
        try:
            with deadline(MESSAGE_SECONDS, f"offering {target} a connection"):
                await send_message(
                    onward, StopMessage(type=StopMessage.CONNECT, peer=_seen(source, seen_at), limit=_limit())
                )
                reply = await receive_message(onward, StopMessage)
        except StarlingError:
            await onward.reset()
            return None
        if reply.status != Status.OK:
            await onward.reset()
            return None
        return onward

    async def _pass_both_ways(self, circuit: Circuit, one: Stream, other: Stream) -> None:
        """Passes bytes until either end ends, stalls or has reached a limit."""
        with anyio.move_on_after(CIRCUIT_SECONDS):
            async with anyio.create_task_group() as tasks:

                async def pass_on(source: Stream, sink: Stream) -> None:
                    with suppress(StarlingError):  # one end is gone, and so is the circuit
                        await self._pass(circuit, source, sink)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(pass_on, one, other)
                await pass_on(other, one)

    async def _pass(self, circuit: Circuit, source: Stream, sink: Stream) -> None:
        while piece := await source.receive(PIECE_BYTES):
            wait_seconds = self.book.take(circuit, len(piece), anyio.current_time())
            if wait_seconds is None:
                return
            if wait_seconds:
                await anyio.sleep(wait_seconds)
            with deadline(STALL_SECONDS, f"relaying to {sink.peer}"):
                await sink.send(piece)
            del piece  # else each direction of an idle circuit would keep the last one in memory


def _seen(peer: PeerName, at: SocketAddress) -> PeerId:
    return PeerId(id=ID.from_string(peer).to_bytes(), addrs=packed([at]))


def _limit() -> Limit:
    return Limit(duration=int(CIRCUIT_SECONDS), data=CIRCUIT_BYTES)


async def _refuse(stream: Stream, status: Status.ValueType) -> None:
    await _send(stream, HopMessage(type=HopMessage.STATUS, status=status))


async def _send(stream: Stream, message: HopMessage) -> None:
    with deadline(MESSAGE_SECONDS, f"answering {stream.peer}"):
        await send_message(stream, message)


def refusal_text(status: int) -> str:
    """Returns in words why a relay refused."""
    texts: dict[int, str] = {
        Status.RESERVATION_REFUSED: "it has no place left",
        Status.RESOURCE_LIMIT_EXCEEDED: "it relays as much as it will",
        Status.PERMISSION_DENIED: "it is no relay for this node",
        Status.CONNECTION_FAILED: "it does not reach the peer either",
        Status.NO_RESERVATION: "the peer has no place there",
    }
    return texts.get(status, f"status {status}")
