"""Gossip: what enters from the topic ``starling/1/<swarm id>`` and what it may do.

A message passes, in this order: ``wire.open_announcement`` (bounds, schema, swarm, clock, signature), bans, in a
private cluster the membership of its sender, the replay window of its sender, the rate of its sender. It is REJECTed,
which costs whoever forwarded it, only for what an honest peer would not have forwarded: malformed, oversized, wrongly
signed, or for another swarm. Everything else that does not pass is IGNOREd: clocks differ, duplicates happen, versions
and memberships move on. Every outcome is counted by its reason.

Memory is bounded whatever strangers do: the state of ``SENDERS_REMEMBERED`` senders, the least lately heard dropped
first, and at most ``NEWCOMERS_PER_SECOND`` new ones admitted on average.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from protocol import limits, wire
from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.messages import Announcement, Body, GroupAdvert, RolloutAdvert
from swarm.host import GossipVerdict, Host, PeerId
from swarm.rate import TokenBucket

SENDERS_REMEMBERED = 8192
NEWCOMERS_PER_SECOND = 20.0
NEWCOMERS_AT_ONCE = 512.0
REPLAY_WINDOW = 1024  # sequence numbers below the highest one that may still come, out of order
MESSAGES_PER_SECOND = 10.0  # of one sender
MESSAGES_AT_ONCE = 60.0
BYTES_PER_SECOND = 64.0 * 1024
BYTES_AT_ONCE = 1024.0 * 1024
ENVELOPE_BYTES = 512  # more than all of an announcement around its body
_FAULTS_OF_THE_FORWARDER = frozenset({"oversized", "malformed", "signature", "wrong_swarm"})
_OPENED_REMEMBERED = 256

Listener = Callable[[Announcement], None]


def topic_of(swarm_id: bytes) -> str:
    return f"starling/{limits.PROTOCOL_MAJOR}/{swarm_id.hex()}"


class ReplayWindow:
    """Admits each sequence number once, in any order within ``REPLAY_WINDOW`` of the highest, and nothing below."""

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
    messages: TokenBucket
    message_bytes: TokenBucket
    replay: ReplayWindow = field(default_factory=ReplayWindow)


class Admission:
    """Who may say how much: replay windows and rates, in memory that strangers cannot make grow."""

    def __init__(self) -> None:
        self._senders: OrderedDict[PeerId, _Sender] = OrderedDict()
        self._newcomers: TokenBucket | None = None

    def __len__(self) -> int:
        return len(self._senders)

    def refusal(self, sender: PeerId, sequence: int, size: int, now_seconds: float) -> str | None:
        """Takes note of one verified message. The reason not to pass it on, or None."""
        state = self._senders.get(sender)
        if state is None:
            if self._newcomers is None:
                self._newcomers = TokenBucket(NEWCOMERS_PER_SECOND, NEWCOMERS_AT_ONCE, now_seconds=now_seconds)
            if not self._newcomers.take(1.0, now_seconds=now_seconds):
                return "newcomers"
            state = self._senders[sender] = _Sender(
                TokenBucket(MESSAGES_PER_SECOND, MESSAGES_AT_ONCE, now_seconds=now_seconds),
                TokenBucket(BYTES_PER_SECOND, BYTES_AT_ONCE, now_seconds=now_seconds),
            )
            if len(self._senders) > SENDERS_REMEMBERED:
                self._senders.popitem(last=False)
        self._senders.move_to_end(sender)
        if not state.replay.admit(sequence):
            return "replay"
        if not state.messages.take(1.0, now_seconds=now_seconds):
            return "rate"
        return None if state.message_bytes.take(size, now_seconds=now_seconds) else "rate"


class Gossip:
    """Announcements of one swarm, in and out, over any host."""

    def __init__(
        self,
        host: Host,
        key: NodeKey,
        swarm_id: bytes,
        *,
        wall_clock: Callable[[], float],
        is_banned: Callable[[PeerId], bool] = lambda peer: False,
        is_member: Callable[[PeerId], bool] | None = None,
    ) -> None:
        self.accepted: Counter[str] = Counter()  # announcements of others, by kind
        self.rejected: Counter[str] = Counter()  # by reason
        self._host = host
        self._key = key
        self._swarm_id = swarm_id
        self._wall_clock = wall_clock
        self._is_banned = is_banned
        self._is_member = is_member  # of a private cluster; in an open swarm nobody asks
        self._admission = Admission()
        self._listeners: list[Listener] = []
        self._opened: OrderedDict[bytes, Announcement] = OrderedDict()  # validated, on its way to ``_receive``
        # Time in microseconds: above everything that an earlier process of this key has used, with nothing on disk.
        self._sequence = int(wall_clock() * 1e6)

    def listen(self, listener: Listener) -> None:
        """``listener`` gets every accepted announcement of others, once, in the order of arrival."""
        self._listeners.append(listener)

    async def start(self) -> None:
        await self._host.subscribe(topic_of(self._swarm_id), self._validate, self._receive)

    async def announce(self, body: Body) -> int:
        """Signs and publishes; returns the bytes of the message. Raises ``OversizedError``, ``TransportError``."""
        now_seconds = self._wall_clock()
        self._sequence += 1
        raw = wire.seal(
            self._key, swarm_id=self._swarm_id, sequence=self._sequence, time_seconds=now_seconds, body=body
        )
        await self._host.publish(topic_of(self._swarm_id), raw)
        return len(raw)

    def _validate(self, forwarder: PeerId, raw: bytes) -> GossipVerdict:
        now_seconds = self._wall_clock()
        try:
            announcement = wire.open_announcement(raw, swarm_id=self._swarm_id, now_seconds=now_seconds)
        except ProtocolError as error:
            self.rejected[error.reason] += 1
            return GossipVerdict.REJECT if error.reason in _FAULTS_OF_THE_FORWARDER else GossipVerdict.IGNORE
        if announcement.sender == self._key.peer_id:
            return GossipVerdict.IGNORE  # our own, come back
        if self._is_banned(announcement.sender):
            refusal: str | None = "banned"
        elif self._is_member is not None and not self._is_member(announcement.sender):
            refusal = "no_member"
        else:
            refusal = self._admission.refusal(announcement.sender, announcement.sequence, len(raw), now_seconds)
        if refusal is not None:
            self.rejected[refusal] += 1
            return GossipVerdict.IGNORE
        self._opened[raw] = announcement
        if len(self._opened) > _OPENED_REMEMBERED:
            self._opened.popitem(last=False)
        return GossipVerdict.ACCEPT

    def _receive(self, forwarder: PeerId, raw: bytes) -> None:
        announcement = self._opened.pop(raw, None)
        if announcement is None:  # pushed out by a burst between validation and delivery
            try:
                announcement = wire.open_announcement(raw, swarm_id=self._swarm_id, now_seconds=self._wall_clock())
            except ProtocolError as error:
                self.rejected[error.reason] += 1
                return
        self.accepted[str(announcement.body.__struct_config__.tag)] += 1
        for listener in self._listeners:
            listener(announcement)


def split_adverts(
    family: bytes, tokenizer: bytes, policy_version: int, groups: Sequence[GroupAdvert]
) -> list[RolloutAdvert]:
    """As few announcements as hold all groups, each within the limits of one, each number in its shortest form."""
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
    """The same advert with whole rewards as integers: one byte each instead of nine, read as equal floats."""
    rewards = tuple(int(reward) if float(reward).is_integer() else reward for reward in group.rewards)
    return msgspec.structs.replace(group, rewards=rewards)
