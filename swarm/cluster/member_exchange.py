"""Spreads credentials, revocations and changes of key in a private cluster, by ``/starling/members/1``.

``protocol.streams.member_messages`` has the messages. A member that learns something asks all connected members, so
that news crosses a swarm in as many exchanges as the swarm is wide. In addition, of two members that have just
connected one asks the other, and each member asks a random one every ``EXCHANGE_EVERY_SECONDS``. A peer that is no
member any more is disconnected at once, and receives the reason in the handshake when it connects again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from random import Random

import anyio

from protocol import limits
from protocol.cluster.refusal import AdmissionRefused, RefusalReason
from protocol.errors import RefusedError, StarlingError, StorageError
from protocol.streams.framing import framed_message
from protocol.streams.member_messages import (
    MEMBER_PROTOCOL,
    MembersAnswer,
    MembersMessage,
    MembersNews,
    MembersQuestion,
    decode_members_message,
    split_digests,
)
from swarm.cluster.membership import Membership
from swarm.deadlines import deadline
from swarm.host import Host, PeerId, Stream
from swarm.hosts.unwrapping import unwrapped
from swarm.stream_reader import StreamReader, asking, read_frame

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
EXCHANGE_SECONDS = 5.0
EXCHANGE_EVERY_SECONDS = 60.0
RENEW_EVERY_SECONDS = 10.0


class MemberExchange:
    """Run ``run`` beside the host. ``is_trying`` returns whether there are addresses that were never tried."""

    def __init__(self, host: Host, membership: Membership, *, random: Random, is_trying: Callable[[], bool]) -> None:
        self.failures: Counter[str] = Counter()
        self._host = host
        self._membership = membership
        self._random = random
        self._is_trying = is_trying
        self._asked_version = membership.version  # of the membership when all connected members were last asked
        self._met: set[PeerId] = set()
        self._next_seconds = self._renew_at_seconds = 0.0
        host.handle(MEMBER_PROTOCOL, self._on_stream)

    async def run(self) -> None:
        """Runs until cancelled. Raises ``RefusedError`` once this node is no member any more, or no peer admits it."""
        with unwrapped():
            async with anyio.create_task_group() as tasks:
                while True:
                    self._raise_if_no_member()
                    if anyio.current_time() >= self._renew_at_seconds:
                        self._renew()
                        self._renew_at_seconds = anyio.current_time() + RENEW_EVERY_SECONDS
                    connected = set(self._host.peers())
                    out = {peer for peer in connected if self._membership.refusal(peer) is not None}
                    for peer in out:
                        tasks.start_soon(self._host.disconnect, peer)
                    for peer in sorted(self._peers_to_ask(connected - out)):
                        tasks.start_soon(self._ask, peer)
                    await anyio.sleep(TICK_SECONDS)

    def _renew(self) -> None:
        try:
            self._membership.renew()
        except StorageError as error:  # it is tried again: half of the membership is left
            log.error("memberships could not be renewed: %s", error)

    def _peers_to_ask(self, members: set[PeerId]) -> set[PeerId]:
        """All members if there is news. Otherwise the newly connected ones whose peer id is greater than ours, and from
        time to time a random one."""
        asked = {peer for peer in members - self._met if self._host.peer_id < peer}
        if self._membership.version != self._asked_version:
            self._asked_version, asked = self._membership.version, members
        elif anyio.current_time() >= self._next_seconds and members:
            asked |= {self._random.choice(sorted(members))}
            self._next_seconds = anyio.current_time() + EXCHANGE_EVERY_SECONDS
        self._met = members
        return asked

    def _raise_if_no_member(self) -> None:
        refused: AdmissionRefused | None = self._membership.own_refusal()
        if refused is None and not self._is_trying():
            refused = self._membership.turned_away
        if refused is not None:
            raise RefusedError(refused.message, refused.reason)

    async def _ask(self, peer: PeerId) -> None:
        try:
            with deadline(EXCHANGE_SECONDS, f"exchanging members with {peer}"):
                async with asking(self._host, peer, MEMBER_PROTOCOL, seconds=EXCHANGE_SECONDS) as stream:
                    await stream.send(framed_message(self._question()))
                    answer = await _receive(StreamReader(stream, stall_seconds=EXCHANGE_SECONDS), MembersAnswer)
                    self._take(answer.news)
                    await stream.send(framed_message(self._news_for(answer.question)))
        except StarlingError as error:
            self.failures[error.reason] += 1

    async def _on_stream(self, stream: Stream) -> None:
        reader = StreamReader(stream, stall_seconds=EXCHANGE_SECONDS)
        with deadline(EXCHANGE_SECONDS, f"exchanging members with {stream.peer}"):
            question = await _receive(reader, MembersQuestion)
            await stream.send(framed_message(MembersAnswer(self._question(), self._news_for(question))))
            self._take(await _receive(reader, MembersNews))

    def _question(self) -> MembersQuestion:
        membership = self._membership
        known = b"".join(sorted(membership.roster.digests()))[: limits.KNOWN_CREDENTIALS_BYTES]
        return MembersQuestion(known, membership.revocations_number, membership.key_number)

    def _news_for(self, theirs: MembersQuestion) -> MembersNews:
        membership, documents = self._membership, self._membership.documents
        return MembersNews(
            tuple(membership.roster.beyond(split_digests(theirs.known), limits.CREDENTIALS_PER_NEWS)),
            documents.revocations if theirs.revocations < membership.revocations_number else b"",
            documents.key_change if theirs.key_change < membership.key_number else b"",
        )

    def _take(self, news: MembersNews) -> None:
        """Takes the list of revocations first, so that no revoked peer is noted or given a key."""
        for raw, take in (
            (news.revocations, self._membership.take_revocations),
            (news.key_change, self._membership.take_key_change),
        ):
            refused = take(raw) if raw else None
            if refused is not None and refused.reason is not RefusalReason.OUTDATED:
                self.failures[refused.reason] += 1
        self._membership.take_credentials(news.credentials)


async def _receive(reader: StreamReader, kind: type[MembersMessage]) -> MembersMessage:
    raw = await read_frame(reader.exactly, max_bytes=limits.MEMBERS_MESSAGE_BYTES, what="an exchange of members")
    return decode_members_message(raw, kind)
