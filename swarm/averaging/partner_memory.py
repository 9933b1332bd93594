"""Which peers of the family we average with, by how exchanges with them ended: pure functions of time and outcomes.

    after a failed exchange      not again for ``PAUSES`` times as long as it took, doubled with every failure that no
                                 commit followed
    peers without a commit       after one of them failed, we ask none of them for ``STRANGERS_PAUSES`` times as long;
                                 then, until one has committed while nobody pauses, one of them a search, by lot: each
                                 with a chance as large as the time for which it has been connected. Those that propose
                                 are accepted on trial, but for as long after one that had passed its trial failed

so that a stranger that takes our time loses its own turn, and strangers that take turns, however many names they have,
cost no more than a fortieth of our time. A name that is always new is hardly ever drawn, and a newcomer that stays is.
Until one has failed, strangers are like all others, to a node that knows anybody.

Peers that have committed with us, or whose groups we learnt from, are not counted among strangers. A newcomer has none
of them, and a crowd dials it: it asks the strangers that it dialled itself first, by the word of peers that it knew
before; each until it has failed once. Where there are none, strangers do not pause together, and all are partners that
have been here at least half as long as the longest: it met the honest ones when it came.

Bounded to ``REMEMBERED`` peers; the one that failed longest ago is forgotten first. To push out one failure takes as
many other failures, each with its own pause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from swarm.host import PeerId

PAUSES: Final = 20.0  # so that one peer takes at most a twentieth of our time
STRANGERS_PAUSES: Final = 40.0  # a partner that we keep waiting meanwhile loses as much
MAX_PAUSE_SECONDS: Final = 24 * 3600.0
REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class FailedExchanges:
    """The failed exchanges of one peer since its last commit."""

    count: int
    until_seconds: float  # no exchange with it before


@dataclass(frozen=True, slots=True)
class PartnerMemory:
    """The outcomes of exchanges. ``now_seconds`` is of any one clock."""

    failed: Mapping[PeerId, FailedExchanges] = field(default_factory=dict)  # the latest last
    is_wary: bool = False  # a stranger has failed, and since then none has committed while nobody paused
    strangers_from_seconds: float = -math.inf
    trials_from_seconds: float = -math.inf

    def after_failure(
        self, peer: PeerId, now_seconds: float, took_seconds: float, *, is_stranger: bool, was_tried: bool = False
    ) -> PartnerMemory:
        """``was_tried``: it was a stranger that proposed and had passed its trial (``pairing``)."""
        failed = dict(self.failed)
        before = failed.pop(peer, None)
        count = before.count + 1 if before is not None else 1
        pause_seconds = min(PAUSES * took_seconds * 2.0 ** min(count - 1, 32), MAX_PAUSE_SECONDS)
        failed[peer] = FailedExchanges(count, now_seconds + pause_seconds)
        while len(failed) > REMEMBERED:
            del failed[next(iter(failed))]
        if not is_stranger:
            return replace(self, failed=failed)
        until_seconds = now_seconds + STRANGERS_PAUSES * took_seconds
        trials_from_seconds = until_seconds if was_tried else self.trials_from_seconds
        return PartnerMemory(failed, True, until_seconds, trials_from_seconds)

    def after_commit(self, peer: PeerId, now_seconds: float, *, is_stranger: bool) -> PartnerMemory:
        failed = {other: each for other, each in self.failed.items() if other != peer}
        remembered = replace(self, failed=failed)
        is_calm = is_stranger and not any(remembered._is_pausing(other, now_seconds) for other in failed)
        return replace(remembered, is_wary=self.is_wary and not is_calm)

    def partners(
        self,
        peers: Sequence[PeerId],
        now_seconds: float,
        *,
        is_stranger: Callable[[PeerId], bool],
        is_dialled: Callable[[PeerId], bool],
        connected_seconds: Callable[[PeerId], float],
        lot: float,
    ) -> list[PeerId]:
        """Returns those of ``peers`` that we ask to average now; ``is_dialled`` says whether we dialled one,
        ``connected_seconds`` for how long it is here, and ``lot``, 0 to 1, is drawn once for each search."""
        ready = [peer for peer in peers if not self._is_pausing(peer, now_seconds)]
        strangers = [peer for peer in ready if is_stranger(peer)]
        known = [peer for peer in ready if peer not in strangers]
        chosen = [] if known else [peer for peer in strangers if is_dialled(peer) and peer not in self.failed]
        first = known or chosen
        if first and now_seconds < self.strangers_from_seconds:
            return first
        if not self.is_wary and not chosen:
            return ready
        stayed_seconds = {peer: connected_seconds(peer) for peer in strangers if peer not in chosen}
        if first:
            return first + _drawn(stayed_seconds, lot)
        longest_seconds = max(stayed_seconds.values(), default=0.0)
        return [peer for peer, seconds in stayed_seconds.items() if seconds >= longest_seconds / 2.0]

    def may_propose(self, peer: PeerId, now_seconds: float, *, is_stranger: bool) -> bool:
        """Whether a proposal of ``peer`` may be accepted. After a stranger has failed, others are accepted on trial,
        which takes none of our time; for a while not, after one that passed its trial has failed."""
        return not self._is_pausing(peer, now_seconds) and not (is_stranger and now_seconds < self.trials_from_seconds)

    def _is_pausing(self, peer: PeerId, now_seconds: float) -> bool:
        failed = self.failed.get(peer)
        return failed is not None and now_seconds < failed.until_seconds


def _drawn(weights: Mapping[PeerId, float], lot: float) -> list[PeerId]:
    """Returns one peer, each with a chance as large as its weight; none of peers without any."""
    rest = lot * sum(weights.values())
    for peer, weight in weights.items():
        rest -= weight
        if rest < 0.0:
            return [peer]
    return []
