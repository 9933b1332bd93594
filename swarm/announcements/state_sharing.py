"""Announces our own state to the swarm, and gives our learner the states of other nodes.

Our state is announced when it changes, every ``ANNOUNCE_SECONDS``, and as soon as a heartbeat says that a peer of our
family is in state sync, but never twice within ``MIN_SECONDS_BETWEEN_STATES``. A node that joins therefore hears
of it within seconds, and a crowd of newcomers, real or invented, costs no more than one announcement in that time. The
blobs of the state are kept from eviction until another state replaces it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from protocol.errors import StorageError
from protocol.messages import CATCHING_UP, Announcement, Heartbeat, StateAdvert
from swarm import api
from swarm.announcements.state_pool import StatePool
from swarm.blobs.store import ContentStore
from swarm.host import PeerId

ANNOUNCE_SECONDS = 60.0
MIN_SECONDS_BETWEEN_STATES = 5.0


class StateSharing:
    """``run`` announces; every other method returns at once."""

    def __init__(
        self,
        store: ContentStore,
        announce: Callable[[StateAdvert], Awaitable[None]],
        *,
        wall_clock: Callable[[], float],
        reputation: Callable[[PeerId, float], float],
    ) -> None:
        """``announce`` must not raise when the network fails."""
        self._store = store
        self._announce = announce
        self._wall_clock = wall_clock
        self._pool = StatePool(lambda peer: reputation(peer, wall_clock()))
        self._own: StateAdvert | None = None
        self._due = anyio.Event()

    def share(self, request: api.ShareState) -> api.Done:
        """Shares a state whose blobs are in the store. Raises ``StorageError`` if one is not; nothing changes then."""
        advert = request.advert
        missing = [each.blob.hex() for each in advert.blobs if not self._store.take_over(each.blob)]
        if missing:
            raise StorageError(f"blobs of the state to announce are not in the store: {', '.join(missing)}")
        if advert == self._own:
            return api.Done()
        before = {each.blob for each in self._own.blobs} if self._own is not None else set()
        after = {each.blob for each in advert.blobs}
        for blob in after - before:
            self._store.pin(blob)
        for blob in before - after:
            self._store.unpin(blob)
        self._own = advert
        self._due.set()
        return api.Done()

    def seen(self, request: api.AskStates) -> api.States:
        return api.States(tuple(self._pool.of(request.family, self._wall_clock())))

    def on_announcement(self, announcement: Announcement, *, family: bytes) -> None:
        """Keeps a state that a peer announced, or notes that a peer looks for one. ``family`` is our own."""
        body = announcement.body
        if isinstance(body, StateAdvert):
            now_seconds = self._wall_clock()
            self._pool.add(announcement.sender, body, now_seconds, sequence=announcement.sequence, family=family)
        elif isinstance(body, Heartbeat) and self._own is not None and _seeks(body, self._own.family):
            self._due.set()

    def forget(self, peer: PeerId) -> None:
        """Drops the state of a peer that left or was banned."""
        self._pool.forget(peer)

    async def run(self) -> None:
        """Announces until cancelled."""
        while True:
            with anyio.move_on_after(ANNOUNCE_SECONDS):
                await self._due.wait()
            self._due = anyio.Event()
            if self._own is not None:
                await self._announce(self._own)
                await anyio.sleep(MIN_SECONDS_BETWEEN_STATES)


def _seeks(heartbeat: Heartbeat, family: bytes) -> bool:
    return heartbeat.phase == CATCHING_UP and heartbeat.family == family
