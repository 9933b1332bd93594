"""Peer exchange ``/starling/peers/1``: who else is in this swarm, and are we in the same one.

    question = u32 length ‖ MessagePack [swarm id, own addresses, peers sought]
    answer   = u32 length ‖ MessagePack [swarm id, own addresses, addresses of others]

Both sides learn the other's own addresses, of which only those that end in its authenticated peer id count. The answer
gives the addresses of the peers sought first, where they are known, then others. A node of another swarm gets the
answer's swarm id and nothing more. Addresses are claims: whoever is dialled must prove its peer id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import anyio
import msgspec
from msgspec import Meta, Struct

from protocol import wire
from protocol.errors import DeadlineError, OversizedError, WrongSwarmError
from protocol.messages import Hash16
from swarm.blobs.blob_server import StreamReader
from swarm.host import Host, PeerId, Stream
from swarm.peers.discovery import ADDRESS_CHARACTERS, ADDRESSES_PER_PEER

PROTOCOL = "/starling/peers/1"
FRAME_BYTES = 32 * 1024
ADDRESSES_TOLD = 64
PEERS_SOUGHT = 8
EXCHANGE_SECONDS = 10.0
STREAM_END_SECONDS = 1.0  # for a peer to end a stream on which it has answered
_LENGTH = struct.Struct(">I")

_Address = Annotated[str, Meta(max_length=ADDRESS_CHARACTERS)]
_OwnAddresses = Annotated[tuple[_Address, ...], Meta(max_length=ADDRESSES_PER_PEER)]


class PeerExchangeQuestion(Struct, frozen=True, array_like=True):
    swarm_id: Hash16
    own: _OwnAddresses
    sought: Annotated[tuple[_Address, ...], Meta(max_length=PEERS_SOUGHT)]


class PeerExchangeAnswer(Struct, frozen=True, array_like=True):
    swarm_id: Hash16
    own: _OwnAddresses
    others: Annotated[tuple[_Address, ...], Meta(max_length=ADDRESSES_TOLD)]


F = TypeVar("F", PeerExchangeQuestion, PeerExchangeAnswer)
Learn = Callable[[PeerId, Sequence[str], Sequence[str]], None]  # (peer, its own addresses, addresses of others)
Tell = Callable[[PeerId, Sequence[PeerId]], Sequence[str]]  # (who asks, peers sought) -> addresses of others


class PeerExchange:
    """Asks and answers. ``learn`` is called with what a member of our swarm said, ``tell`` for what to say."""

    def __init__(self, host: Host, swarm_id: bytes, *, learn: Learn, tell: Tell) -> None:
        self._host = host
        self._swarm_id = swarm_id
        self._learn = learn
        self._tell = tell
        host.handle(PROTOCOL, self._serve)

    async def ask(self, peer: PeerId, sought: Sequence[PeerId] = ()) -> None:
        """One exchange with a connected peer. Raises ``ProtocolError`` (another swarm is one), ``TransportError``."""
        stream = await self._host.open_stream(peer, PROTOCOL, deadline_seconds=EXCHANGE_SECONDS)
        try:
            await _send(stream, PeerExchangeQuestion(self._swarm_id, self._own(), tuple(sought[:PEERS_SOUGHT])))
            answer = await _receive(stream, PeerExchangeAnswer)
            await stream.finish(linger_seconds=STREAM_END_SECONDS)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stream.reset()
            raise
        if answer.swarm_id != self._swarm_id:
            raise WrongSwarmError(f"{peer} is in swarm {answer.swarm_id.hex()}; ours is {self._swarm_id.hex()}")
        self._learn(peer, answer.own, answer.others)

    async def _serve(self, stream: Stream) -> None:
        question = await _receive(stream, PeerExchangeQuestion)
        if question.swarm_id != self._swarm_id:
            # It disconnects on reading this; if it does not, our own question will show where it belongs.
            await _send(stream, PeerExchangeAnswer(self._swarm_id, (), ()))
            return
        self._learn(stream.peer, question.own, ())
        others = tuple(self._tell(stream.peer, question.sought))[:ADDRESSES_TOLD]
        await _send(stream, PeerExchangeAnswer(self._swarm_id, self._own(), others))

    def _own(self) -> tuple[str, ...]:
        return tuple(a for a in self._host.addresses() if len(a) <= ADDRESS_CHARACTERS)[:ADDRESSES_PER_PEER]


async def _send(stream: Stream, message: PeerExchangeQuestion | PeerExchangeAnswer) -> None:
    body = msgspec.msgpack.encode(message)
    with anyio.move_on_after(EXCHANGE_SECONDS) as scope:
        await stream.send(_LENGTH.pack(len(body)) + body)
    if scope.cancelled_caught:
        raise DeadlineError(f"{stream.peer} read nothing for {EXCHANGE_SECONDS:g} s")


async def _receive(stream: Stream, kind: type[F]) -> F:
    reader = StreamReader(stream, stall_seconds=EXCHANGE_SECONDS)
    (length,) = _LENGTH.unpack(await reader.exactly(_LENGTH.size))
    if length > FRAME_BYTES:
        raise OversizedError(f"{length} bytes in peer exchange; at most {FRAME_BYTES} are allowed")
    return wire.decode(bytes(await reader.exactly(length)), kind, max_bytes=FRAME_BYTES)
