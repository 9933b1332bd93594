"""The groups that other nodes advertised, from which the learner chooses: bounded in number, completions and age.

Each group gets the next cursor, from 1 upward. A blob is listed once, even if other peers advertise it again. No sender
holds more than ``SENDER_SHARE`` of the pool, so that a sender that floods it pushes out its own groups only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from protocol.messages import RolloutAdvert
from swarm.api import SeenGroup

GROUPS = 4096
COMPLETIONS = 8 * GROUPS  # a group takes memory in proportion to its completions
AGE_SECONDS = 1800.0
SENDER_SHARE = 0.25


class GroupPool:
    """Not for concurrent use; ``now_seconds`` is Unix time by our clock."""

    def __init__(self) -> None:
        self._groups: OrderedDict[bytes, SeenGroup] = OrderedDict()  # by blob, in order of cursor
        self._completions: Counter[str] = Counter()  # by peer
        self._held: Counter[str] = Counter()  # groups, by peer
        self._cursor = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, peer: str, advert: RolloutAdvert, now_seconds: float) -> int:
        """Adds the groups that are new; returns how many."""
        self.expire(now_seconds)
        new = 0
        for group in advert.groups:
            if group.blob in self._groups:
                continue
            self._cursor += 1
            new += 1
            self._groups[group.blob] = SeenGroup(
                self._cursor, peer, now_seconds, advert.family, advert.tokenizer, advert.policy_version, group
            )
            self._count(peer, len(group.rewards), 1)
        while self._held[peer] > SENDER_SHARE * GROUPS or self._completions[peer] > SENDER_SHARE * COMPLETIONS:
            self._drop(next(blob for blob, seen in self._groups.items() if seen.peer == peer))
        while len(self._groups) > GROUPS or self._completions.total() > COMPLETIONS:
            self._drop(next(iter(self._groups)))
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
            blob, oldest = next(iter(self._groups.items()))
            if now_seconds - oldest.seen_at_seconds <= AGE_SECONDS:
                return
            self._drop(blob)

    def forget(self, peer: str) -> None:
        """Drops what a peer advertised that left or was banned."""
        for blob in [b for b, seen in self._groups.items() if seen.peer == peer]:
            self._drop(blob)

    def _drop(self, blob: bytes) -> None:
        seen = self._groups.pop(blob)
        self._count(seen.peer, -len(seen.advert.rewards), -1)

    def _count(self, peer: str, completions: int, groups: int) -> None:
        self._completions[peer] += completions
        self._held[peer] += groups
        if not self._held[peer]:
            del self._held[peer], self._completions[peer]
