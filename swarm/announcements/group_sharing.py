"""Announces our own groups to the swarm, and gives our learner the groups of other nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from protocol.limits import CLOCK_WINDOW_SECONDS
from protocol.messages import RolloutAdvert
from swarm import api
from swarm.announcements.crowding import Standing
from swarm.announcements.gossip import split_adverts
from swarm.announcements.group_pool import AGE_SECONDS, GroupPool
from swarm.announcements.pacing import SwarmPacing
from swarm.blobs.store import ContentStore
from swarm.host import PeerId
from swarm.peers.peer_table import PeerTable
from swarm.recent import Recent

GROUP_BLOB_SECONDS: Final = AGE_SECONDS + CLOCK_WINDOW_SECONDS  # after its last use no peer has its advert any more
OWN_BLOBS_REMEMBERED: Final = 4096


class GroupSharing:
    """Counts own groups that were ``announced`` while a peer was connected, and those that a peer has ``fetched``, each
    once. What each peer announced and fetched is counted in the notes on it."""

    def __init__(
        self,
        store: ContentStore,
        table: PeerTable,
        announce: Callable[[RolloutAdvert], Awaitable[object]],
        *,
        pacing: SwarmPacing,
        standing: Callable[[PeerId], Standing],
        is_connected: Callable[[], bool],
        wall_clock: Callable[[], float],
    ) -> None:
        """``announce`` may raise ``StarlingError``, which ``share`` then raises; ``is_connected``: to any peer."""
        self.announced = self.fetched = 0
        self._store, self._table, self._announce = store, table, announce
        self._pacing, self._is_connected, self._wall_clock = pacing, is_connected, wall_clock
        self._pool = GroupPool(standing)
        self._own_blobs: Recent[bytes, bool] = Recent(OWN_BLOBS_REMEMBERED)  # whether a peer has fetched it

    async def share(self, request: api.Share) -> None:
        """Announces as many of the groups as the swarm's size allows now; all of them are served."""
        for group in request.groups:
            self._store.take_over(group.blob)
            self._own_blobs[group.blob] = False
        for advert in split_adverts(request.family, request.tokenizer, request.policy_version, request.groups):
            if self._pacing.may_advertise():
                await self._announce(advert)
                self.announced += len(advert.groups) if self._is_connected() else 0

    def seen(self, request: api.AskSeenGroups) -> api.SeenGroups:
        return api.SeenGroups(tuple(self._pool.after(request.after, request.limit, self._wall_clock())))

    def on_advert(self, peer: PeerId, advert: RolloutAdvert) -> None:
        """Keeps the groups that a peer announced, except our own."""
        foreign = tuple(g for g in advert.groups if g.blob not in self._own_blobs)
        if foreign:
            fresh = RolloutAdvert(advert.family, advert.tokenizer, advert.policy_version, foreign)
            notes, now_seconds = self._table.of(peer), self._wall_clock()
            notes.advertised_at_seconds = now_seconds
            notes.groups_announced += self._pool.add(peer, fresh, now_seconds)

    def on_given(self, peer: PeerId, blob: bytes) -> None:
        """A blob was sent to a peer in full."""
        if blob in self._own_blobs:
            self._table.known(peer).groups_fetched += 1
            self.fetched += not self._own_blobs[blob]
            self._own_blobs[blob] = True

    def forget(self, peer: PeerId) -> None:
        self._pool.forget(peer)

    def tend(self) -> None:
        """Drops what is old, and moves senders to the standing that they have now."""
        self._pool.expire(self._wall_clock())
        self._pool.regrade()
