"""Peer exchange ``/starling/peers/1``: asks connected peers who else is in this swarm, and answers the same question.

Both sides learn the other's own addresses. Only those that end in its authenticated peer id count. The answer
gives the known addresses of the peers sought first, then those of others. A node of another swarm gets the answer's
swarm id and nothing more. ``protocol.streams.peer_messages`` has the messages.

A peer is answered ``QUESTIONS`` times at once and once each ``QUESTION_EVERY_SECONDS`` afterwards: an answer is made
from all that this node knows, and a question brings addresses that have to be placed. Further streams are reset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from protocol.errors import UnreachableError, WrongSwarmError
from protocol.limits import (
    ADDRESS_CHARACTERS,
    ADDRESSES_PER_ANSWER,
    ADDRESSES_PER_PEER,
    PEER_MESSAGE_BYTES,
    PEERS_SOUGHT,
)
from protocol.streams.framing import framed_message
from protocol.streams.peer_messages import (
    PEER_PROTOCOL,
    PeerExchangeAnswer,
    PeerExchangeQuestion,
    decode_peer_message,
)
from swarm.host import Host, PeerId, Stream
from swarm.stream_reader import StreamReader, asking, read_frame, send_within
from swarm.token_bucket import TokenBuckets

EXCHANGE_SECONDS = 10.0
QUESTIONS = 32
QUESTION_EVERY_SECONDS = 1.0  # a node that looks for the peers of adverts asks often, but not all the time
PEERS_REMEMBERED = 1024

OnAddresses = Callable[[PeerId, Sequence[str], Sequence[str]], None]  # (peer, its addresses, addresses of others)
AddressesFor = Callable[[PeerId, Sequence[PeerId]], Sequence[str]]  # (asker, peers sought) -> addresses of others


class PeerExchange:
    """Asks and answers. ``on_addresses`` receives the addresses that a peer of our swarm sent;
    ``addresses_for`` returns those to send; ``on_other_swarm`` is awaited with a peer of another swarm while it is
    still connected."""

    def __init__(
        self,
        host: Host,
        swarm_id: bytes,
        *,
        on_addresses: OnAddresses,
        addresses_for: AddressesFor,
        on_other_swarm: Callable[[PeerId], Awaitable[None]] | None = None,
    ) -> None:
        self._host = host
        self._swarm_id = swarm_id
        self._on_addresses = on_addresses
        self._addresses_for = addresses_for
        self._on_other_swarm = on_other_swarm
        self._limits: TokenBuckets[PeerId] = TokenBuckets(1 / QUESTION_EVERY_SECONDS, QUESTIONS, PEERS_REMEMBERED)
        host.handle(PEER_PROTOCOL, self._on_stream)

    async def ask(self, peer: PeerId, sought: Sequence[PeerId] = ()) -> None:
        """Asks a connected peer once. Raises ``WrongSwarmError`` for a peer of another swarm, any other
        ``ProtocolError``, and ``TransportError``."""
        question = PeerExchangeQuestion(self._swarm_id, self._own(), tuple(sought[:PEERS_SOUGHT]))
        async with asking(self._host, peer, PEER_PROTOCOL, seconds=EXCHANGE_SECONDS) as stream:
            await send_within(stream, framed_message(question), EXCHANGE_SECONDS)
            answer = decode_peer_message(await _receive(stream), PeerExchangeAnswer)
        if answer.swarm_id != self._swarm_id:
            await self._note_other_swarm(peer)
            raise WrongSwarmError(f"{peer} is in swarm {answer.swarm_id.hex()}; ours is {self._swarm_id.hex()}")
        self._on_addresses(peer, answer.own, answer.others)

    async def _on_stream(self, stream: Stream) -> None:
        if not self._limits.take(stream.peer, now_seconds=anyio.current_time()):
            raise UnreachableError(f"{stream.peer} asks who is here more than once in {QUESTION_EVERY_SECONDS:g} s")
        question = decode_peer_message(await _receive(stream), PeerExchangeQuestion)
        # A peer of another swarm disconnects when it reads this; if it does not, our own question shows where it is.
        answer = PeerExchangeAnswer(self._swarm_id, (), ())
        if question.swarm_id == self._swarm_id:
            self._on_addresses(stream.peer, question.own, ())
            others = tuple(self._addresses_for(stream.peer, question.sought))[:ADDRESSES_PER_ANSWER]
            answer = PeerExchangeAnswer(self._swarm_id, self._own(), others)
        else:
            await self._note_other_swarm(stream.peer)
        await send_within(stream, framed_message(answer), EXCHANGE_SECONDS)

    async def _note_other_swarm(self, peer: PeerId) -> None:
        if self._on_other_swarm is not None:
            await self._on_other_swarm(peer)

    def _own(self) -> tuple[str, ...]:
        return tuple(a for a in self._host.addresses() if len(a) <= ADDRESS_CHARACTERS)[:ADDRESSES_PER_PEER]


async def _receive(stream: Stream) -> bytes:
    reader = StreamReader(stream, stall_seconds=EXCHANGE_SECONDS)
    return await read_frame(reader.exactly, max_bytes=PEER_MESSAGE_BYTES, what="peer exchange")
