"""Bounds the harm that learning from others can do, whatever they send.

A round asks it four things, in this order:

    admits         whose groups are worth fetching                                     (``standing``)
    shaped         how much each group that arrived may weigh in the step               (``shares``)
    shaped_again   the same for remembered answers, in each further step
    after_round    whether own success has fallen, and after which peers; then weights go back    (``watch``)

Own success is measured on the learner's own groups, which it generates and scores in any case: it costs nothing, and
no peer can choose the prompts. Where much of it is lost (``LARGE``), weights and moments are put back to a copy from
before the fall. Copies are kept in main memory, two of them, one every ``KEEP_EVERY_ROUNDS`` calm rounds in which
others taught something, and none above ``HARM_COPIED_WEIGHTS``: there only influence falls, and the
weights stay. A node that learns from nobody keeps none.

Until enough is known of own success (``SuccessWatch.is_warm``), newcomers teach with the least influence and gain none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from node.fit.footprint import HARM_COPIES
from node.learner.influence.shares import masses_by_peer, shaped
from node.learner.influence.standing import Standings
from node.learner.influence.watch import HARM, HARM_OF_NEWCOMERS, Groups, SuccessWatch
from node.learner.objective.batch import TrainingGroup
from node.learner.steps.undo import Undo

LARGE: Final = 0.25  # of the usual success, lost over the newest rounds: weights go back
LARGE_ROUNDS: Final = 3  # fewer say too little, more mix in what came before
KEEP_EVERY_ROUNDS: Final = 4
CALM_SCORE: Final = 1.0  # of the watch, below which a round counts as one without harm: two in three of those without
LAG_ROUNDS: Final = 2  # from learning something to its first trace in own success, and one more
MOST_ROUNDS: Final = 64  # whose teachers are remembered


@dataclass(slots=True)
class InfluenceState:
    """The part of the guard that checkpoints hold. Copies of weights are not part of it."""

    watch: SuccessWatch = field(default_factory=SuccessWatch)
    standings: Standings = field(default_factory=Standings)
    shares: dict[int, dict[str, float]] = field(default_factory=dict)  # by round: mass by peer
    blind_until_round: int = 0  # own groups of weights that were taken back say nothing


@dataclass(frozen=True, slots=True)
class Harm:
    """Own success fell after learning from others."""

    lost_share: float  # of the usual success, over the newest rounds
    since_round: int
    peers: tuple[str, ...]  # whose influence is withdrawn
    suspected: bool  # none of them is known to be the cause: they were proven, and prove themselves again
    until_round: int  # the first in which all of them may teach; suspected: while one newcomer teaches at a time
    weights_of_round: int | None  # that were put back; None: they stay


class Guard:
    """The guard of one learner. Only the learner's thread may call it."""

    def __init__(self, state: InfluenceState, *, completions: int, staleness: int, seed: str) -> None:
        """``completions`` are those of one own group; generation lags behind by up to ``staleness`` versions."""
        self.state = state
        self._completions, self._staleness, self._seed = completions, staleness, seed
        self._kept: list[tuple[int, Undo]] = []  # round and weights, oldest first

    def admits(self, round_number: int) -> Callable[[str], bool]:
        """Returns a function that says whether a peer's groups can be learnt from in this round; for another thread."""
        standings = self.state.standings
        frozen = replace(standings, peers=dict(standings.peers), places=dict(standings.places))
        return lambda peer: frozen.admits(peer, round_number)

    def shaped(
        self, round_number: int, own: Sequence[TrainingGroup], foreign: Sequence[tuple[str, TrainingGroup]]
    ) -> list[TrainingGroup]:
        """Returns the foreign groups, each given with its peer, with their influence; 0 for those not learnt from."""
        standings = self.state.standings
        by_peer: dict[str, list[TrainingGroup]] = {}
        for peer, group in foreign:
            by_peer.setdefault(peer, []).append(group)
        teaching = [peer for peer, groups in by_peer.items() if any(group.informative for group in groups)]
        for peer, groups in by_peer.items():
            if peer not in teaching and any(group.not_copied for group in groups):
                standings.useless(peer, round_number)
        draws = random.Random(f"starling/places/{self._seed}/{round_number}")
        standings.seat(teaching, round_number, draws)
        admitted = {peer for peer in teaching if standings.admits(peer, round_number)}
        admitted = {peer for peer in admitted if standings.of(peer).proven or peer in standings.places}
        newcomers = frozenset(peer for peer in admitted if not standings.of(peer).proven)
        self.state.shares[round_number] = {}
        return self._weighed(round_number, own, foreign, newcomers, lambda peer: peer in admitted)

    def may_teach_again(self, peer: str) -> bool:
        """Whether the learner may learn again from answers of ``peer``, in steps after the one that they came with.

        Only proven peers may: those that taught for ``PROBATION_ROUNDS`` calm rounds (``standing``). An unknown peer is
        not proven.
        """
        return self.state.standings.of(peer).proven

    def shaped_again(
        self, round_number: int, own: Sequence[TrainingGroup], foreign: Sequence[tuple[str, TrainingGroup]]
    ) -> list[TrainingGroup]:
        """Returns remembered answers of peers that may teach again, with their influence in one more step, under the
        same caps: ``own`` are the round's own groups. Takes note of who taught."""
        return self._weighed(round_number, own, foreign, frozenset(), lambda peer: True)

    def _weighed(
        self,
        round_number: int,
        own: Sequence[TrainingGroup],
        foreign: Sequence[tuple[str, TrainingGroup]],
        newcomers: frozenset[str],
        admitted: Callable[[str], bool],
    ) -> list[TrainingGroup]:
        """Returns the foreign groups with their influence, and takes note of who taught."""
        standings = self.state.standings
        groups = shaped(
            own,
            foreign,
            completions=self._completions,
            influence=lambda peer: standings.influence(peer, round_number) if admitted(peer) else 0.0,
            newcomers=newcomers,
            caution=standings.caution,
        )
        masses = masses_by_peer([(peer, group) for (peer, _), group in zip(foreign, groups, strict=True)])
        before = self.state.shares.setdefault(round_number, {})
        for peer, mass in masses.items():
            if mass > 0:
                before[peer] = before.get(peer, 0.0) + mass
        standings.taught([peer for peer, mass in masses.items() if mass > 0], round_number)
        return groups

    def after_round(
        self, round_number: int, groups: Groups, copied: Callable[[Undo | None], Undo | None]
    ) -> Harm | None:
        """Takes all own groups of the round; returns harm if it shows now, after putting the weights back where that is
        due. ``copied`` makes a copy of weights and moments, None where there is no memory for one; it gets the copy
        that is no longer needed, whose memory it may use."""
        state = self.state
        for old in [number for number in state.shares if number <= round_number - MOST_ROUNDS]:
            del state.shares[old]
        if round_number <= state.blind_until_round:
            return None
        state.watch = state.watch.after_round(round_number, groups)
        shares = self._shares_since(state.watch.since) if state.watch.since is not None else {}
        newcomers = bool(state.standings.responsible_newcomers(shares))
        if state.watch.score >= (HARM_OF_NEWCOMERS if newcomers else HARM):
            return self._harm(round_number, shares)
        if state.watch.is_warm and state.watch.score < CALM_SCORE:
            state.standings.calm(list(state.shares.get(round_number - 1, {})))
        due = not self._kept or round_number - self._kept[-1][0] >= KEEP_EVERY_ROUNDS
        if due and state.watch.score < CALM_SCORE and state.shares.get(round_number):
            oldest = self._kept.pop(0)[1] if len(self._kept) == HARM_COPIES else None
            copy = copied(oldest)
            if copy is not None:
                self._kept.append((round_number, copy))
        return None

    def _shares_since(self, since: int) -> dict[str, float]:
        """Returns by peer what was learnt from it in the rounds in which success fell."""
        shares: dict[str, float] = {}
        for number, by_peer in self.state.shares.items():
            if number >= since - LAG_ROUNDS:
                for peer, share in by_peer.items():
                    shares[peer] = shares.get(peer, 0.0) + share
        return shares

    def _harm(self, round_number: int, shares: Mapping[str, float]) -> Harm | None:
        state, since = self.state, self.state.watch.since or round_number
        lost = state.watch.lost_share(LARGE_ROUNDS)
        suspected = not state.standings.responsible_newcomers(shares)
        blamed = tuple(state.standings.blame(shares, round_number))
        before = [each for each in self._kept if each[0] < since] or self._kept[:1]
        until = state.standings.returns_in_round(blamed) if not suspected else state.standings.wary_until_round
        if blamed and lost >= LARGE and before:
            kept_round, weights = before[-1]
            weights.restore()
            state.watch = state.watch.forgetting()
            state.blind_until_round = round_number + self._staleness
            self._kept = [before[-1]]
            return Harm(lost, since, blamed, suspected, until, kept_round)
        state.watch = state.watch.accepting()
        if not blamed:  # it fell by itself
            return None
        return Harm(lost, since, blamed, suspected, until, None)
