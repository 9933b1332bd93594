"""The states that other nodes announce, for a learner that starts from one: the newest of each peer, bounded.

States are dropped after ``AGE_SECONDS``. Above ``PEERS`` of them, those of other families are dropped first, then those
heard longest ago. The state of a peer that leaves or is banned is dropped too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from protocol.messages import StateAdvert
from swarm.api import SeenState

PEERS = 256
AGE_SECONDS = 200.0  # three announcements may be lost


class StatePool:
    """Not for concurrent use; ``now_seconds`` is Unix time by our clock."""

    def __init__(self) -> None:
        # By peer: (sequence, Unix time of arrival, advert).
        self._heard: OrderedDict[str, tuple[int, float, StateAdvert]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heard)

    def add(self, peer: str, advert: StateAdvert, now_seconds: float, *, sequence: int, family: bytes) -> None:
        """Keeps what ``peer`` announced, unless a later announcement arrived before. ``family`` is our own."""
        known = self._heard.get(peer)
        if known is not None and known[0] > sequence:
            return
        self._heard[peer] = (sequence, now_seconds, advert)
        self._heard.move_to_end(peer)
        if len(self._heard) > PEERS:
            foreign = (p for p, (_, _, held) in self._heard.items() if held.family != family)
            del self._heard[next(foreign, next(iter(self._heard)))]

    def of(self, family: bytes, now_seconds: float, reputation: Callable[[str], float]) -> list[SeenState]:
        """Returns the states of one family, the latest heard first."""
        self.expire(now_seconds)
        return [
            SeenState(peer, heard_at_seconds, reputation(peer), advert)
            for peer, (_, heard_at_seconds, advert) in reversed(self._heard.items())
            if advert.family == family
        ]

    def expire(self, now_seconds: float) -> None:
        for peer in [p for p, (_, at, _) in self._heard.items() if now_seconds - at > AGE_SECONDS]:
            del self._heard[peer]

    def forget(self, peer: str) -> None:
        self._heard.pop(peer, None)
