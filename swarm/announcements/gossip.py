"""Gossip: which messages of the topic ``starling/1/<swarm id>`` are accepted, and what happens to the others.

A message is checked in this order: ``wire.open_envelope`` (size, version, swarm, clock, signature), bans, in a private
cluster the membership of its sender, the replay window of its sender, the rate of its sender, ``wire.open_body``
(structure, schema). The body comes last since it alone takes long to check: so the time that a sender can cost is
bounded by its rate. A message is REJECTed, which costs the peer that forwarded it score, only if an honest peer would
not have forwarded it: if it is malformed, oversized, wrongly signed, for another swarm, or of another major version
than the topic's. Every other message that fails is IGNOREd, because clocks differ, duplicates happen, and memberships
and kinds change. Every refusal is counted by its reason.

Memory is bounded whatever strangers send: the state of ``SENDERS_REMEMBERED`` senders is kept, the one heard longest
ago is dropped first. Each forwarder brings at most ``NEWCOMERS_PER_SECOND`` new senders on average, so that strangers
who invent senders use up their own part and no honest peer's. A peer that speaks for itself is always admitted.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from protocol import limits, wire
from protocol.errors import (
    ClockError,
    MalformedError,
    OversizedError,
    ProtocolError,
    SignatureError,
    VersionError,
    WrongSwarmError,
)
from protocol.identity import NodeKey
from protocol.meeting_points import gossip_topic
from protocol.messages import Announcement, Body, GroupAdvert, RolloutAdvert
from swarm.announcements.sender_slots import SenderAllowance, SenderSlots
from swarm.host import GossipVerdict, Host, PeerId
from swarm.recent import Recent
from swarm.token_bucket import TokenBucket, TokenBuckets

SENDERS_REMEMBERED = 8192
NEWCOMERS_PER_SECOND = 4.0  # of one forwarder
NEWCOMERS_AT_ONCE = 128.0  # 64 connections together bring no more at once than are remembered
FORWARDERS_REMEMBERED = 512  # the one that brought a newcomer longest ago is dropped first
REPLAY_WINDOW = 1024  # sequence numbers below the highest one that may still arrive, out of order
BYTES_PER_SECOND = 64.0 * 1024
BYTES_AT_ONCE = 1024.0 * 1024
ENVELOPE_BYTES = 512  # more than an announcement takes around its body
_FLOAT32 = b"\xca"  # MessagePack's mark of one
_FORWARDER_FAULTS = (OversizedError, MalformedError, SignatureError, WrongSwarmError, VersionError)
_OPENED_REMEMBERED = 256
_OFFSETS_REMEMBERED = 256  # of neighbours
UNPACED = SenderAllowance(8.0, 80)
LEAD = 2.0  # times what is accepted in the long run, that may arrive: a sender that lies about the time gains no more

OnAnnouncement = Callable[[Announcement], None]


class GossipRefusal(StrEnum):
    """Why a well-formed, signed announcement is not accepted. Its body is not decoded then.

    The values are stable: counters carry them. Other messages are counted by the ``reason`` of their ``ProtocolError``.
    """

    BANNED = "banned"  # its sender is banned
    NO_MEMBER = "no_member"  # its sender is no member of this private cluster
    NEWCOMERS = "newcomers"  # its forwarder brings too many new senders in a short time
    REPLAY = "replay"  # its sequence number was seen, or is below the replay window
    RATE = "rate"  # its sender sends too many messages or bytes


class ReplayWindow:
    """Admits each sequence number once, in any order within ``REPLAY_WINDOW`` of the highest, and none below it."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0  # bit i: highest − i was admitted

    def admit(self, sequence: int) -> bool:
        ahead = sequence - self._highest
        if ahead > 0:
            kept = self._seen << ahead if ahead < REPLAY_WINDOW else 0
            self._seen = (kept | 1) & ((1 << REPLAY_WINDOW) - 1)
            self._highest = sequence
            return True
        bit = 1 << -ahead if -ahead < REPLAY_WINDOW else 0
        if not bit or self._seen & bit:
            return False
        self._seen |= bit
        return True


@dataclass(slots=True)
class _Sender:
    slots: SenderSlots
    messages: TokenBucket
    message_bytes: TokenBucket
    replay: ReplayWindow = field(default_factory=ReplayWindow)


class SenderLimits:
    """Replay windows and rates per sender, in memory that strangers cannot make grow."""

    def __init__(self) -> None:
        self._senders: Recent[PeerId, _Sender] = Recent(SENDERS_REMEMBERED)
        self._newcomers_of: TokenBuckets[PeerId] = TokenBuckets(
            NEWCOMERS_PER_SECOND, NEWCOMERS_AT_ONCE, FORWARDERS_REMEMBERED
        )

    def __len__(self) -> int:
        return len(self._senders)

    def refusal(
        self,
        sender: PeerId,
        sequence: int,
        size: int,
        now_seconds: float,
        *,
        signed_seconds: float,
        forwarder: PeerId,
        allowance: SenderAllowance = UNPACED,
    ) -> GossipRefusal | None:
        """Counts one verified message, signed at ``signed_seconds`` of its sender's clock. Returns the reason not to
        accept it, or None."""
        state = self._senders.get(sender)
        if state is None:
            if sender != forwarder and not self._newcomers_of.take(forwarder, now_seconds=now_seconds):
                return GossipRefusal.NEWCOMERS
            state = _Sender(
                SenderSlots(sender),
                TokenBucket(LEAD * allowance.messages_per_second, allowance.messages_at_once, now_seconds=now_seconds),
                TokenBucket(BYTES_PER_SECOND, BYTES_AT_ONCE, now_seconds=now_seconds),
            )
        self._senders[sender] = state
        if not state.replay.admit(sequence):
            return GossipRefusal.REPLAY
        if not state.slots.admit(signed_seconds, allowance):
            return GossipRefusal.RATE
        state.messages.rate = LEAD * allowance.messages_per_second
        state.messages.burst = allowance.messages_at_once
        if not state.messages.take(1.0, now_seconds=now_seconds):
            return GossipRefusal.RATE
        return None if state.message_bytes.take(size, now_seconds=now_seconds) else GossipRefusal.RATE


class Gossip:
    """Announcements of one swarm, received and sent, over any host."""

    def __init__(
        self,
        host: Host,
        key: NodeKey,
        swarm_id: bytes,
        *,
        wall_clock: Callable[[], float],
        is_banned: Callable[[PeerId], bool] = lambda peer: False,
        is_member: Callable[[PeerId], bool] | None = None,
        allowance: Callable[[], SenderAllowance] = lambda: UNPACED,
    ) -> None:
        """``allowance`` says how many messages one sender may send now."""
        self.accepted: Counter[str] = Counter()  # announcements of others, by kind
        self.rejected: Counter[str] = Counter()  # by reason
        # Seconds by which the last announcement that was refused for its time differed from ours, by the neighbour that
        # sent it: a node whose own clock is wrong accepts no heartbeat that could tell.
        self.refused_offsets: Recent[PeerId, float] = Recent(_OFFSETS_REMEMBERED)
        self._host = host
        self._key = key
        self._swarm_id = swarm_id
        self._wall_clock = wall_clock
        self._is_banned = is_banned
        self._allowance = allowance
        self._is_member = is_member  # of a private cluster; None in an open swarm
        self._limits = SenderLimits()
        self._handlers: list[OnAnnouncement] = []
        self._opened: Recent[bytes, Announcement] = Recent(_OPENED_REMEMBERED)  # until ``_on_message`` takes it
        # Time in microseconds: above every number that an earlier process of this key has used, with nothing on disk.
        self._sequence = int(wall_clock() * 1e6)

    def listen(self, on_announcement: OnAnnouncement) -> None:
        """Calls ``on_announcement`` with every accepted announcement of others, once, in the order of arrival."""
        self._handlers.append(on_announcement)

    async def start(self) -> None:
        await self._host.subscribe(gossip_topic(self._swarm_id), self._validate, self._on_message)

    async def announce(self, body: Body) -> int:
        """Signs and publishes; returns the bytes of the message. Raises ``OversizedError``, ``TransportError``."""
        now_seconds = self._wall_clock()
        self._sequence += 1
        raw = wire.seal(
            self._key, swarm_id=self._swarm_id, sequence=self._sequence, time_seconds=now_seconds, body=body
        )
        await self._host.publish(gossip_topic(self._swarm_id), raw)
        return len(raw)

    def _validate(self, forwarder: PeerId, raw: bytes) -> GossipVerdict:
        now_seconds = self._wall_clock()
        try:
            envelope = wire.open_envelope(raw, swarm_id=self._swarm_id, now_seconds=now_seconds)
            if envelope.sender == self._key.peer_id:
                return GossipVerdict.IGNORE  # our own announcement, returned to us
            refusal = self._refusal(envelope, len(raw), now_seconds, forwarder)
            if refusal is not None:
                self.rejected[refusal] += 1
                return GossipVerdict.IGNORE
            announcement = wire.open_body(envelope)
        except ProtocolError as error:
            self.rejected[error.reason] += 1
            if isinstance(error, ClockError):
                self.refused_offsets[forwarder] = error.offset_seconds
            return GossipVerdict.REJECT if isinstance(error, _FORWARDER_FAULTS) else GossipVerdict.IGNORE
        self._opened[raw] = announcement
        return GossipVerdict.ACCEPT

    def _refusal(
        self, envelope: wire.Envelope, size: int, now_seconds: float, forwarder: PeerId
    ) -> GossipRefusal | None:
        sender = envelope.sender
        if self._is_banned(sender):
            return GossipRefusal.BANNED
        if self._is_member is not None and not self._is_member(sender):
            return GossipRefusal.NO_MEMBER
        return self._limits.refusal(
            sender,
            envelope.sequence,
            size,
            now_seconds,
            signed_seconds=envelope.time_seconds,
            forwarder=forwarder,
            allowance=self._allowance(),
        )

    def _on_message(self, forwarder: PeerId, raw: bytes) -> None:
        announcement = self._opened.pop(raw, None)
        if announcement is None:  # pushed out by a burst between validation and delivery
            try:
                announcement = wire.open_announcement(raw, swarm_id=self._swarm_id, now_seconds=self._wall_clock())
            except ProtocolError as error:
                self.rejected[error.reason] += 1
                return
        self.accepted[str(announcement.body.__struct_config__.tag)] += 1
        for on_announcement in self._handlers:
            on_announcement(announcement)


def split_adverts(
    family: bytes, tokenizer: bytes, policy_version: int, groups: Sequence[GroupAdvert]
) -> list[RolloutAdvert]:
    """Returns the fewest announcements that hold all groups, each within the limits, numbers in their shortest form."""
    adverts: list[RolloutAdvert] = []
    part: list[GroupAdvert] = []
    part_bytes = 0
    for group in map(shortened, groups):
        group_bytes = len(msgspec.msgpack.encode(group))
        full = part_bytes + group_bytes > limits.ANNOUNCEMENT_BYTES - ENVELOPE_BYTES
        if part and (full or len(part) == limits.GROUPS_PER_ADVERT):
            adverts.append(RolloutAdvert(family, tokenizer, policy_version, tuple(part)))
            part, part_bytes = [], 0
        part.append(group)
        part_bytes += group_bytes
    if part:
        adverts.append(RolloutAdvert(family, tokenizer, policy_version, tuple(part)))
    return adverts


def shortened(group: GroupAdvert) -> GroupAdvert:
    """Returns the same advert with whole numbers as integers, of one byte each, and others as float32, of five, where
    msgspec writes nine. Rewards are read as equal floats, mean log-probabilities within a float32's rounding."""
    return msgspec.structs.replace(
        group, rewards=tuple(map(_short, group.rewards)), mean_logps=tuple(map(_short, group.mean_logps))
    )


def _short(number: float) -> int | msgspec.Raw:
    return int(number) if float(number).is_integer() else msgspec.Raw(_FLOAT32 + struct.pack(">f", number))
