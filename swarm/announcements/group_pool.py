"""The groups that other nodes advertised, from which the learner chooses: bounded in number, completions and age.

Each group gets the next cursor, from 1 upward. A sender's group is listed once. A blob that several senders advertise
is listed for each of them: what one claims of it binds nobody else. When the pool is full, room is made as
``crowding`` says, so that strangers push out nothing of senders whose claims held.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.messages import RolloutAdvert
from swarm.announcements.crowding import SenderShares, Standing
from swarm.api import SeenGroup

GROUPS = 4096
GROUP_SIZE = 8  # of a group beside its completions, in completions: what it takes in memory
ROOM = GROUPS * (GROUP_SIZE + 8)  # so many groups of eight completions
AGE_SECONDS = 1800.0

_Key = tuple[str, bytes]  # sender and blob


class GroupPool:
    """Not for concurrent use; ``now_seconds`` is Unix time by our clock."""

    def __init__(self, standing: Callable[[str], Standing], *, room: int = ROOM) -> None:
        self._groups: dict[_Key, SeenGroup] = {}  # in order of cursor
        self._shares: SenderShares[_Key] = SenderShares(room, standing)
        self._cursor = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, peer: str, advert: RolloutAdvert, now_seconds: float) -> int:
        """Adds the groups that are new; returns how many."""
        self.expire(now_seconds)
        new = 0
        for group in advert.groups:
            key = (peer, group.blob)
            if key in self._groups:
                continue
            self._cursor += 1
            new += 1
            self._groups[key] = SeenGroup(
                self._cursor, peer, now_seconds, advert.family, advert.tokenizer, advert.policy_version, group
            )
            self._shares.add(peer, key, GROUP_SIZE + len(group.rewards))
        self._make_room()
        return new

    def after(self, cursor: int, limit: int, now_seconds: float) -> list[SeenGroup]:
        """Returns at most ``limit`` groups above ``cursor``, oldest first.

        A cursor above the newest one is of an earlier process, and is read as 0.
        """
        self.expire(now_seconds)
        if cursor > self._cursor:
            cursor = 0
        found: list[SeenGroup] = []
        for seen in reversed(self._groups.values()):
            if seen.cursor <= cursor:
                break
            found.append(seen)
        return found[::-1][:limit]

    def expire(self, now_seconds: float) -> None:
        while self._groups:
            key, oldest = next(iter(self._groups.items()))
            if now_seconds - oldest.seen_at_seconds <= AGE_SECONDS:
                return
            self._drop(key)

    def regrade(self) -> None:
        """Takes account of senders that connected or left, and of claims that were checked, since they announced."""
        self._shares.regrade()
        self._make_room()

    def forget(self, peer: str) -> None:
        """Drops what a peer advertised that left or was banned."""
        for key in self._shares.of(peer):
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        del self._groups[key]
        self._shares.remove(key[0], key)

    def _make_room(self) -> None:
        for key in self._shares.crowded_out():
            del self._groups[key]
