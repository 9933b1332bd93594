"""Notes on each peer: its heartbeat, and what became of its groups and weights. Bounded to ``PEERS``."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.messages import Announcement, Heartbeat
from swarm.api import ExchangeStatus

PEERS = 4096


@dataclass(slots=True)
class PeerNotes:
    heartbeat: Heartbeat | None = None
    heartbeat_at_seconds: float = 0.0  # Unix time by our clock
    clock_offset_seconds: float | None = None  # the sender's time in that heartbeat minus ours when it came
    has_left: bool = False  # it said goodbye, and has sent no heartbeat since
    left_at_seconds: float = -math.inf  # by its own clock
    heartbeat_sequence: int = -1  # tells a later heartbeat from an earlier one, in any order of arrival
    advertised_at_seconds: float = -math.inf  # Unix time by our clock, when its last advert came
    groups_announced: int = 0  # by the peer
    groups_used: int = 0
    groups_rejected: int = 0
    groups_fetched: int = 0  # times that the peer fetched one of our groups
    conduct: Counter[str] = field(default_factory=Counter)  # what the peer did, counted by ``Conduct``
    exchanges_committed: int = 0  # of weights
    exchanges_abandoned: int = 0
    last_exchange: ExchangeStatus | None = None

    def is_present(self, seconds: float) -> bool:
        """Whether a heartbeat came at Unix time ``seconds`` or later, and no goodbye after it."""
        return self.heartbeat is not None and not self.has_left and self.heartbeat_at_seconds >= seconds

    def is_news(self, sequence: int, sent_at_seconds: float) -> bool:
        """Whether a heartbeat was sent after the one that is known and after its sender's last goodbye: announcements
        arrive in any order. ``sent_at_seconds`` is of the sender's clock."""
        return sequence > self.heartbeat_sequence and sent_at_seconds > self.left_at_seconds

    @property
    def has_history(self) -> bool:
        """Whether the peer was of use, which no stranger is before it is met."""
        return bool(self.groups_used or self.exchanges_committed)


class PeerTable:
    """The notes on at most ``PEERS`` peers.

    Above that the peer that we heard of longest ago is dropped, of those that were never of use: heartbeats under
    made-up identities cost nothing.
    """

    def __init__(self) -> None:
        self._notes: OrderedDict[str, PeerNotes] = OrderedDict()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._notes))

    def __len__(self) -> int:
        return len(self._notes)

    def of(self, peer: str) -> PeerNotes:
        """Returns the notes on ``peer``, new ones if there are none, and marks the peer as the latest heard of."""
        notes = self._notes.get(peer)
        if notes is None:
            notes = self._notes[peer] = PeerNotes()
        self._notes.move_to_end(peer)
        if len(self._notes) > PEERS:
            strangers = (other for other, known in self._notes.items() if not known.has_history and other != peer)
            del self._notes[next(strangers, next(iter(self._notes)))]
        return notes

    def on_heartbeat(self, announcement: Announcement, heartbeat: Heartbeat, now_seconds: float) -> bool | None:
        """Notes a heartbeat that came now; returns whether it is its sender's first, or None if it is no news."""
        notes = self.of(announcement.sender)
        if not notes.is_news(announcement.sequence, announcement.time_seconds):
            return None
        is_first = notes.heartbeat is None
        notes.heartbeat, notes.heartbeat_at_seconds = heartbeat, now_seconds
        notes.clock_offset_seconds = announcement.time_seconds - now_seconds
        notes.heartbeat_sequence, notes.has_left = announcement.sequence, False
        return is_first

    def known(self, peer: str) -> PeerNotes:
        """Returns the notes on ``peer``, or empty ones that are not kept."""
        return self._notes.get(peer) or PeerNotes()

    def heard_since(self, seconds: float) -> int:
        """Counts the peers whose last heartbeat came at Unix time ``seconds`` or later."""
        return sum(notes.is_present(seconds) for notes in self._notes.values())

    def advertised_since(self, seconds: float) -> int:
        """Counts the peers whose last advert came at Unix time ``seconds`` or later."""
        return sum(notes.advertised_at_seconds >= seconds and not notes.has_left for notes in self._notes.values())

    def leave(self, peer: str, sent_at_seconds: float) -> None:
        """Notes that a known peer said goodbye, at ``sent_at_seconds`` of its own clock. Its name and its counts are
        kept; heartbeats that it sent later may have any sequence number."""
        notes = self._notes.get(peer)
        if notes is not None:
            notes.has_left, notes.left_at_seconds, notes.heartbeat_sequence = True, sent_at_seconds, -1
