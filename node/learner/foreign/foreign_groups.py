"""Groups of others, round after round: asked for while own ones are generated, and taken in when they are here."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

from node.learner.allocation.success import SuccessTracker
from node.learner.foreign.candidates import ForeignCandidate, ForeignCandidates
from node.learner.foreign.intake import Incoming, RolloutIntake
from node.learner.foreign.outcomes import ForeignOutcomes
from node.learner.objective.batch import SELF
from node.learner.objective.report import ObjectiveReport

MIN_COLLECT_SECONDS: Final = 0.25  # waiting for foreign groups


class ForeignGroups:
    """The groups of others for one learner. Only the learner's thread may call it."""

    def __init__(
        self,
        intake: RolloutIntake,
        candidates: ForeignCandidates,
        admits: Callable[[int], Callable[[str], bool]],
        draws: Callable[[str, int], random.Random],
        *,
        ahead: bool,
    ) -> None:
        """``admits``: whose groups a round may learn from; ``draws``: a round's random numbers for one purpose. With
        ``ahead`` generation runs ahead and leaves no time: the next groups come while the round learns."""
        self._intake, self._candidates = intake, candidates
        self._admits, self._draws, self._ahead = admits, draws, ahead

    def ask(self, rounds_done: int, success: SuccessTracker) -> None:
        """Has groups chosen and fetched for the round after ``rounds_done``, unless the last ones are still on their
        way. Returns at once."""
        self._intake.admits = self._admits(rounds_done + 1)
        self._intake.begin(success.copy().of, self._draws("choose", rounds_done))

    def collected(
        self, rounds_done: int, success: SuccessTracker, seconds: float, outcomes: ForeignOutcomes
    ) -> tuple[Incoming, Sequence[ForeignCandidate]]:
        """Returns what has arrived, after ``seconds`` at most, and of it the groups whose prompts can be made here."""
        incoming = self._intake.collect(max(MIN_COLLECT_SECONDS, seconds))
        candidates = self._candidates.regenerated(incoming.groups, outcomes)
        if self._ahead:
            self.ask(rounds_done + 1, success)
        return incoming, candidates

    def measured(self, objective: ObjectiveReport) -> None:
        """Remembers, for choosing, how far the policies of others are from ours."""
        by_peer = objective.divergence_by_peer()
        self._intake.measured({p: nats for p, nats in by_peer.items() if p != SELF and math.isfinite(nats)})
