"""Which peers of the family we average with, by what exchanges with them came to: pure functions of time and outcomes.

    after a failed exchange      not again for ``PAUSES`` times as long as it took, doubled with every failure that no
                                 commit followed
    peers without a commit       all of them together: a search is open to them with the chance

        chance = max(MIN_CHANCE, 2^(commits of such peers − 3 × failures of such peers)), at most 1

so that a stranger that takes our time loses its own turn, and strangers that take turns, however many names they have,
cost no more than one search in thirty-two. Until one has failed the chance is 1, and strangers are like all others: two
replicas must both be open to average for the first time, so with less every replica would keep its first partner, and
the family would not mix. After a failure, a search that is open to strangers asks known peers first.
Peers that have committed with us, or whose groups we learnt from, are not counted among strangers; while none of them
is here, every search is open.

Bounded to ``REMEMBERED`` peers; the one that failed longest ago is forgotten first. To push out one failure takes as
many other failures, of which each makes the chance smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from swarm.host import PeerId

PAUSES: Final = 20.0  # so that one peer takes at most a twentieth of our time
MAX_PAUSE_SECONDS: Final = 24 * 3600.0
MIN_CHANCE: Final = 1 / 32
REMEMBERED: Final = 1024
_FAILURE: Final = 3  # one takes more time than several commits


@dataclass(frozen=True, slots=True)
class FailedExchanges:
    """Of one peer, since its last commit."""

    count: int
    until_seconds: float  # no exchange with it before


@dataclass(frozen=True, slots=True)
class PartnerMemory:
    """The outcomes of exchanges. ``now_seconds`` is of any one clock."""

    failed: Mapping[PeerId, FailedExchanges] = field(default_factory=dict)  # the latest last
    strangers: int = 0  # the exponent above, at most 0; peers that had never committed before count

    def after_failure(
        self, peer: PeerId, now_seconds: float, took_seconds: float, *, is_stranger: bool
    ) -> PartnerMemory:
        failed = dict(self.failed)
        before = failed.pop(peer, None)
        count = before.count + 1 if before is not None else 1
        pause_seconds = min(PAUSES * took_seconds * 2.0 ** min(count - 1, 32), MAX_PAUSE_SECONDS)
        failed[peer] = FailedExchanges(count, now_seconds + pause_seconds)
        while len(failed) > REMEMBERED:
            del failed[next(iter(failed))]
        lowest = math.floor(math.log2(MIN_CHANCE))
        return PartnerMemory(failed, max(lowest, self.strangers - _FAILURE * is_stranger))

    def after_commit(self, peer: PeerId, *, is_stranger: bool) -> PartnerMemory:
        failed = {other: each for other, each in self.failed.items() if other != peer}
        return PartnerMemory(failed, min(0, self.strangers + is_stranger))

    def is_pausing(self, peer: PeerId, now_seconds: float) -> bool:
        failed = self.failed.get(peer)
        return failed is not None and now_seconds < failed.until_seconds

    @property
    def wary(self) -> bool:
        """Whether strangers have failed more than newcomers have made good: then known peers are asked first."""
        return self.strangers < 0

    def open_to_strangers(self, random: Random) -> bool:
        """Draws whether the next search may end with a peer that has never committed."""
        return random.random() < max(MIN_CHANCE, min(1.0, 2.0**self.strangers))
