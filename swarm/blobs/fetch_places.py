"""Which of the peers that may serve a fetch are asked at the same time. A peer that brings nothing holds nobody up.

A peer takes a place when it is asked. ``PEERS_AT_ONCE`` places are for peers that deliver, or were asked less than
``TRIAL_SECONDS`` ago. A peer that delivers less than ``USEFUL_BYTES_PER_SECOND`` keeps its place without counting as
one of them, so that the next peer is asked beside it; and once ``PEERS_AT_MOST`` are asked, the slowest of those asked
at least ``PATIENCE_SECONDS`` ago gives its place to the next. So any number of peers that stall or drip delays the peer
that serves by seconds, and cannot keep it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from swarm.host import PeerId
from swarm.stream_reader import SLOWEST_BYTES_PER_SECOND

PEERS_AT_ONCE = 8
PEERS_AT_MOST = 64
TRIAL_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
USEFUL_BYTES_PER_SECOND = 65_536.0  # below it, eight peers together are slower than a slow home connection
LIMITED_BYTES_PER_SECOND = 4 * SLOWEST_BYTES_PER_SECOND  # for each peer asked, of a limit on downloads
LOOK_SECONDS = 0.25  # between two looks at the rates, while a peer waits for a place


@dataclass(slots=True)
class FetchPlace:
    """A peer that is being asked."""

    asked_at_seconds: float
    received_bytes: int = 0

    def rate(self, now_seconds: float) -> float:
        """Bytes a second since it was asked."""
        return self.received_bytes / max(now_seconds - self.asked_at_seconds, 1e-6)


def may_start(places: Mapping[PeerId, FetchPlace], now_seconds: float, most: int = PEERS_AT_MOST) -> bool:
    """Whether one more peer may be asked now."""
    counting = sum(
        now_seconds - place.asked_at_seconds < TRIAL_SECONDS or place.rate(now_seconds) >= USEFUL_BYTES_PER_SECOND
        for place in places.values()
    )
    return counting < PEERS_AT_ONCE and len(places) < most


def to_displace(places: Mapping[PeerId, FetchPlace], now_seconds: float, most: int = PEERS_AT_MOST) -> PeerId | None:
    """The peer that gives its place to one that waits; None if none has to."""
    if len(places) < most:
        return None
    slow = {
        peer: place.rate(now_seconds)
        for peer, place in places.items()
        if now_seconds - place.asked_at_seconds >= PATIENCE_SECONDS
    }
    return min(slow, key=slow.__getitem__, default=None)


def peers_within(download_bytes_per_second: float) -> int:
    """Returns how many peers may be asked at once so that each can send at a useful rate under a limit; 0: no limit."""
    if not download_bytes_per_second:
        return PEERS_AT_MOST
    return max(1, min(PEERS_AT_MOST, int(download_bytes_per_second / LIMITED_BYTES_PER_SECOND)))


class FetchPlaces:
    """The places of one fetch, at most ``most`` of them."""

    def __init__(self, most: int = PEERS_AT_MOST) -> None:
        self._most = most
        self._places: dict[PeerId, FetchPlace] = {}
        self._scopes: dict[PeerId, anyio.CancelScope] = {}
        self._freed = anyio.Event()
        self._in_turn = anyio.Lock()  # the first to wait is the first to be asked

    async def take(self, peer: PeerId) -> anyio.CancelScope:
        """Waits for a place. The returned scope is cancelled when it must be given to another."""
        async with self._in_turn:
            while not may_start(self._places, anyio.current_time(), self._most):
                displaced = to_displace(self._places, anyio.current_time(), self._most)
                if displaced is not None:
                    del self._places[displaced]
                    self._scopes[displaced].cancel()
                    continue
                with anyio.move_on_after(LOOK_SECONDS):
                    await self._freed.wait()
            self._places[peer] = FetchPlace(anyio.current_time())
            self._scopes[peer] = anyio.CancelScope()
            return self._scopes[peer]

    def give_back(self, peer: PeerId) -> None:
        """May be called for a peer that was displaced."""
        self._places.pop(peer, None)
        self._scopes.pop(peer, None)
        self._freed.set()
        self._freed = anyio.Event()

    def received(self, peer: PeerId, size_bytes: int) -> None:
        """Counts verified bytes."""
        if peer in self._places:
            self._places[peer].received_bytes += size_bytes
