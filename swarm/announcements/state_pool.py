"""The states that other nodes announce, for a learner that starts from one: the newest of each peer, bounded.

States are dropped after ``AGE_SECONDS``. Above ``PEERS`` of them, those of other families are dropped first, then those
of peers with the least reputation, and of equals the newest comer: a crowd of new identities pushes out nobody who was
heard before it. The state of a peer that leaves or is banned is dropped too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.messages import StateAdvert
from swarm.api import SeenState

PEERS = 256
AGE_SECONDS = 200.0  # three announcements may be lost


@dataclass(slots=True)
class _Heard:
    number: int  # peers in the order in which they were first heard
    sequence: int
    at_seconds: float  # Unix time of arrival
    advert: StateAdvert


class StatePool:
    """Not for concurrent use; ``now_seconds`` is Unix time by our clock."""

    def __init__(self, reputation: Callable[[str], float] = lambda peer: 0.5) -> None:
        self._reputation = reputation
        self._heard: dict[str, _Heard] = {}  # by peer
        self._peers_heard = 0  # in all

    def __len__(self) -> int:
        return len(self._heard)

    def add(self, peer: str, advert: StateAdvert, now_seconds: float, *, sequence: int, family: bytes) -> None:
        """Keeps what ``peer`` announced, unless a later announcement arrived before. ``family`` is our own."""
        known = self._heard.get(peer)
        if known is not None and known.sequence > sequence:
            return
        number = self._peers_heard if known is None else known.number
        self._peers_heard += known is None
        self._heard[peer] = _Heard(number, sequence, now_seconds, advert)
        if len(self._heard) > PEERS:
            self.expire(now_seconds)
        if len(self._heard) > PEERS:
            del self._heard[min(self._heard, key=lambda p: self._worth(p, family))]

    def of(self, family: bytes, now_seconds: float) -> list[SeenState]:
        """Returns the states of one family, the latest heard first."""
        self.expire(now_seconds)
        latest_first = sorted(self._heard.items(), key=lambda each: -each[1].at_seconds)
        return [
            SeenState(peer, heard.at_seconds, self._reputation(peer), heard.advert)
            for peer, heard in latest_first
            if heard.advert.family == family
        ]

    def expire(self, now_seconds: float) -> None:
        for peer in [p for p, heard in self._heard.items() if now_seconds - heard.at_seconds > AGE_SECONDS]:
            del self._heard[peer]

    def forget(self, peer: str) -> None:
        self._heard.pop(peer, None)

    def _worth(self, peer: str, family: bytes) -> tuple[bool, float, int]:
        heard = self._heard[peer]
        return heard.advert.family == family, self._reputation(peer), -heard.number
