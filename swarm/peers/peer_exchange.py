"""Peer exchange ``/starling/peers/1``: asks connected peers who else is in this swarm, and answers the same question.

Both sides learn the other's own addresses, of which only those that end in its authenticated peer id count. The answer
gives the known addresses of the peers sought first, then those of others. A node of another swarm gets the answer's
swarm id and nothing more. ``protocol.streams.peer_messages`` has the messages.

A peer is answered ``QUESTIONS`` times at once and once each ``QUESTION_EVERY_SECONDS`` afterwards: an answer is made
from all that this node knows, and a question brings addresses that have to be placed. Further streams are reset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from protocol.errors import DeadlineError, UnreachableError, WrongSwarmError
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
from swarm.peers.question_limits import QuestionLimits
from swarm.stream_reader import StreamReader, read_frame

EXCHANGE_SECONDS = 10.0
QUESTIONS = 32
QUESTION_EVERY_SECONDS = 1.0  # a node that looks for the peers of adverts asks often, but not all the time
STREAM_END_SECONDS = 1.0  # for a peer to end a stream after its answer

OnAddresses = Callable[[PeerId, Sequence[str], Sequence[str]], None]  # (peer, its addresses, addresses of others)
AddressesFor = Callable[[PeerId, Sequence[PeerId]], Sequence[str]]  # (asker, peers sought) -> addresses of others


class PeerExchange:
    """Asks and answers. ``on_addresses`` receives the addresses that a peer of our swarm sent;
    ``addresses_for`` returns those to send."""

    def __init__(self, host: Host, swarm_id: bytes, *, on_addresses: OnAddresses, addresses_for: AddressesFor) -> None:
        self._host = host
        self._swarm_id = swarm_id
        self._on_addresses = on_addresses
        self._addresses_for = addresses_for
        self._limits = QuestionLimits(host, at_once=QUESTIONS, every_seconds=QUESTION_EVERY_SECONDS)
        host.handle(PEER_PROTOCOL, self._on_stream)

    async def ask(self, peer: PeerId, sought: Sequence[PeerId] = ()) -> None:
        """Asks a connected peer once. Raises ``WrongSwarmError`` for a peer of another swarm, any other
        ``ProtocolError``, and ``TransportError``."""
        stream = await self._host.open_stream(peer, PEER_PROTOCOL, deadline_seconds=EXCHANGE_SECONDS)
        try:
            await _send(stream, PeerExchangeQuestion(self._swarm_id, self._own(), tuple(sought[:PEERS_SOUGHT])))
            answer = decode_peer_message(await _receive(stream), PeerExchangeAnswer)
            await stream.finish(linger_seconds=STREAM_END_SECONDS)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stream.reset()
            raise
        if answer.swarm_id != self._swarm_id:
            raise WrongSwarmError(f"{peer} is in swarm {answer.swarm_id.hex()}; ours is {self._swarm_id.hex()}")
        self._on_addresses(peer, answer.own, answer.others)

    async def _on_stream(self, stream: Stream) -> None:
        if not self._limits.may_ask(stream.peer):
            raise UnreachableError(f"{stream.peer} asks who is here more than once in {QUESTION_EVERY_SECONDS:g} s")
        question = decode_peer_message(await _receive(stream), PeerExchangeQuestion)
        if question.swarm_id != self._swarm_id:
            # It disconnects when it reads this; if it does not, our own question will show which swarm it is in.
            await _send(stream, PeerExchangeAnswer(self._swarm_id, (), ()))
            return
        self._on_addresses(stream.peer, question.own, ())
        others = tuple(self._addresses_for(stream.peer, question.sought))[:ADDRESSES_PER_ANSWER]
        await _send(stream, PeerExchangeAnswer(self._swarm_id, self._own(), others))

    def _own(self) -> tuple[str, ...]:
        return tuple(a for a in self._host.addresses() if len(a) <= ADDRESS_CHARACTERS)[:ADDRESSES_PER_PEER]


async def _send(stream: Stream, message: PeerExchangeQuestion | PeerExchangeAnswer) -> None:
    with anyio.move_on_after(EXCHANGE_SECONDS) as scope:
        await stream.send(framed_message(message))
    if scope.cancelled_caught:
        raise DeadlineError(f"{stream.peer} read nothing for {EXCHANGE_SECONDS:g} s")


async def _receive(stream: Stream) -> bytes:
    reader = StreamReader(stream, stall_seconds=EXCHANGE_SECONDS)
    return await read_frame(reader.exactly, max_bytes=PEER_MESSAGE_BYTES, what="peer exchange")
