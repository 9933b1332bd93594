"""Spreads what makes a private cluster: credentials, revocations, changes of key. ``/starling/members/1``

    who asks → question = [digests known, number of revocations, number of key change]
    other    → answer   = [question of its own, news]
    who asks → news     = [credentials, list of revocations, change of key]; what the other has already is left out

each a u32 length and MessagePack; digests are those of ``swarm.cluster.roster``, one after another. Whoever learns
something asks all whom it is connected to, so that news crosses a swarm in as many exchanges as it is wide; besides,
two that have just connected ask, and everybody asks somebody now and then. Whoever is out is disconnected at once, and
told why by the handshake when it comes back.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Annotated, Any, TypeVar

import anyio
import msgspec
from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.cluster.documents import Document
from protocol.cluster.refusal import AdmissionRefused, RefusalReason
from protocol.errors import DeadlineError, OversizedError, RefusedError, StarlingError, StorageError
from protocol.messages import Counter as Number
from swarm.blobs.blob_server import StreamReader
from swarm.cluster.membership import Membership
from swarm.cluster.roster import DIGEST_BYTES
from swarm.host import Host, PeerId, Stream
from swarm.hosts.unwrapping import unwrapped

log = logging.getLogger(__name__)

PROTOCOL = "/starling/members/1"
TICK_SECONDS = 0.25
EXCHANGE_SECONDS = 5.0
EXCHANGE_EVERY_SECONDS = 60.0
RENEW_EVERY_SECONDS = 10.0
STREAM_END_SECONDS = 1.0
MAX_CREDENTIALS = 128  # of one exchange; there are more exchanges for more
FRAME_BYTES = MAX_CREDENTIALS * (limits.DOCUMENT_BYTES + 8) + limits.REVOCATIONS_BYTES + 256 * 1024
_LENGTH = struct.Struct(">I")
_DIGESTS_BYTES = 4 * limits.MEMBERS * DIGEST_BYTES


class MembersQuestion(Struct, frozen=True, array_like=True):
    known: Annotated[bytes, Meta(max_length=_DIGESTS_BYTES)]
    revocations: Number
    key_change: Number


class MembersNews(Struct, frozen=True, array_like=True):
    credentials: Annotated[tuple[Document, ...], Meta(max_length=MAX_CREDENTIALS)]
    revocations: Annotated[bytes, Meta(max_length=limits.REVOCATIONS_BYTES)]
    key_change: Document

    def __repr__(self) -> str:  # a change of key is a secret
        return f"News({len(self.credentials)} credentials, …)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class MembersAnswer(Struct, frozen=True, array_like=True):
    question: MembersQuestion
    news: MembersNews


F = TypeVar("F", MembersQuestion, MembersAnswer, MembersNews)


class MemberExchange:
    """Run ``run`` beside the host. ``is_trying`` tells whether addresses are left that were never tried."""

    def __init__(self, host: Host, membership: Membership, *, random: Random, is_trying: Callable[[], bool]) -> None:
        self.failures: Counter[str] = Counter()
        self._host = host
        self._membership = membership
        self._random = random
        self._is_trying = is_trying
        self._told = membership.version  # what those connected were asked about last
        self._met: set[PeerId] = set()
        self._next_seconds = self._renew_at_seconds = 0.0
        host.handle(PROTOCOL, self._serve)

    async def run(self) -> None:
        """Until cancelled. Raises ``RefusedError`` once this node is no member any more, or nobody lets it in."""
        with unwrapped():
            async with anyio.create_task_group() as tasks:
                while True:
                    self._raise_if_out()
                    if anyio.current_time() >= self._renew_at_seconds:
                        self._renew()
                        self._renew_at_seconds = anyio.current_time() + RENEW_EVERY_SECONDS
                    connected = set(self._host.peers())
                    out = {peer for peer in connected if self._membership.refusal(peer) is not None}
                    for peer in out:
                        tasks.start_soon(self._host.disconnect, peer)
                    for peer in sorted(self._whom_to_ask(connected - out)):
                        tasks.start_soon(self._ask, peer)
                    await anyio.sleep(TICK_SECONDS)

    def _renew(self) -> None:
        try:
            self._membership.renew()
        except StorageError as error:  # there is time: half of the membership is left
            log.error("memberships could not be renewed: %s", error)

    def _whom_to_ask(self, members: set[PeerId]) -> set[PeerId]:
        """All, when there is news; otherwise those met since the last time, by one of the two, and somebody in turn."""
        asked = {peer for peer in members - self._met if self._host.peer_id < peer}
        if self._membership.version != self._told:
            self._told, asked = self._membership.version, members
        elif anyio.current_time() >= self._next_seconds and members:
            asked |= {self._random.choice(sorted(members))}
            self._next_seconds = anyio.current_time() + EXCHANGE_EVERY_SECONDS
        self._met = members
        return asked

    def _raise_if_out(self) -> None:
        refused: AdmissionRefused | None = self._membership.own_refusal()
        if refused is None and not self._is_trying():
            refused = self._membership.turned_away
        if refused is not None:
            raise RefusedError(refused.message, refused.reason)

    async def _ask(self, peer: PeerId) -> None:
        try:
            with anyio.move_on_after(EXCHANGE_SECONDS) as scope:
                await self._exchange(peer)
            if scope.cancelled_caught:
                raise DeadlineError(f"{peer} did not finish an exchange of members within {EXCHANGE_SECONDS:g} s")
        except StarlingError as error:
            self.failures[error.reason] += 1

    async def _exchange(self, peer: PeerId) -> None:
        stream = await self._host.open_stream(peer, PROTOCOL, deadline_seconds=EXCHANGE_SECONDS)
        try:
            await _send(stream, self._question())
            answer = await _receive(StreamReader(stream, stall_seconds=EXCHANGE_SECONDS), MembersAnswer)
            self._take(answer.news)
            await _send(stream, self._news_for(answer.question))
            await stream.finish(linger_seconds=STREAM_END_SECONDS)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stream.reset()
            raise

    async def _serve(self, stream: Stream) -> None:
        reader = StreamReader(stream, stall_seconds=EXCHANGE_SECONDS)
        with anyio.move_on_after(EXCHANGE_SECONDS):
            question = await _receive(reader, MembersQuestion)
            await _send(stream, MembersAnswer(self._question(), self._news_for(question)))
            self._take(await _receive(reader, MembersNews))
            return
        raise DeadlineError(f"{stream.peer} did not finish an exchange of members within {EXCHANGE_SECONDS:g} s")

    def _question(self) -> MembersQuestion:
        membership = self._membership
        known = b"".join(sorted(membership.roster.digests()))[:_DIGESTS_BYTES]
        return MembersQuestion(known, membership.revocations_number, membership.key_number)

    def _news_for(self, theirs: MembersQuestion) -> MembersNews:
        membership, documents = self._membership, self._membership.documents
        known = {theirs.known[at : at + DIGEST_BYTES] for at in range(0, len(theirs.known), DIGEST_BYTES)}
        return MembersNews(
            tuple(membership.roster.beyond(known, MAX_CREDENTIALS)),
            documents.revocations if theirs.revocations < membership.revocations_number else b"",
            documents.key_change if theirs.key_change < membership.key_number else b"",
        )

    def _take(self, news: MembersNews) -> None:
        """The list first: nobody is noted, and no key is passed on, in the time between."""
        for raw, take in (
            (news.revocations, self._membership.take_revocations),
            (news.key_change, self._membership.take_key_change),
        ):
            refused = take(raw) if raw else None
            if refused is not None and refused.reason is not RefusalReason.OUTDATED:
                self.failures[refused.reason] += 1
        self._membership.take_credentials(news.credentials)


async def _send(stream: Stream, message: MembersQuestion | MembersAnswer | MembersNews) -> None:
    body = msgspec.msgpack.encode(message)
    await stream.send(_LENGTH.pack(len(body)) + body)


async def _receive(reader: StreamReader, kind: type[F]) -> F:
    (length,) = _LENGTH.unpack(await reader.exactly(_LENGTH.size))
    if length > FRAME_BYTES:
        raise OversizedError(f"{length} bytes in an exchange of members; at most {FRAME_BYTES} are allowed")
    return wire.decode(bytes(await reader.exactly(length)), kind, max_bytes=FRAME_BYTES)
