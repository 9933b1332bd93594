"""What is taken back when own success shows that peers did harm: an outer step of averaging, or what was learnt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.averaging.guard import OwnGroup
from node.averaging.weight_averager import WeightAverager
from node.events import Event, InfluenceWithdrawn
from node.fit.footprint import HARM_COPIED_WEIGHTS
from node.learner.influence.guard import Guard
from node.learner.memory.phases import PhaseRunner
from node.learner.round.scoring import ScoredRound
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.undo import copy_within


@dataclass(eq=False)
class TakingBack:
    """Takes back harm for one learner. Only the learner's thread may call it."""

    state: LearnerState
    guard: Guard
    averager: WeightAverager | None
    optimizer: MasterAdamW
    phases: PhaseRunner
    report: Callable[[Event], None]
    clock: Callable[[], float]

    def averaging(self, scored: ScoredRound) -> bool:
        """Returns whether own rewards show that the last outer step did harm, and it is taken back."""
        if self.averager is None:
            return False
        groups = [OwnGroup(r.prompt.ref.task, r.oldest_version, scores.rewards) for r, scores in scored.everything]
        return self.averager.take_back_if_harmful(self.state, groups)

    def learning(self, scored: ScoredRound) -> bool:
        """Returns whether own success shows that learning from others did harm, and earlier weights are back. Call it
        once the state counts the round."""
        state = self.state
        harm = self.guard.after_round(
            state.round,
            [(rollout.prompt.ref.task, scores.rewards) for rollout, scores in scored.everything],
            lambda oldest: self.phases.attempt(
                "checkpoint", lambda: copy_within(HARM_COPIED_WEIGHTS, self.optimizer, oldest)
            ),
        )
        if harm is None:
            return False
        if not harm.suspected or harm.weights_of_round is not None:
            state.hints.forget(harm.peers)
            state.imitation.forget(harm.peers)  # answers of peers that are only suspected rest until these are proven
        self.report(
            InfluenceWithdrawn(
                time_seconds=self.clock(),
                round=state.round,
                since_round=harm.since_round,
                lost_share=harm.lost_share,
                peers=harm.peers,
                action="on_probation" if harm.suspected else "set_aside",
                until_round=harm.until_round,
                weights_of_round=harm.weights_of_round,
            )
        )
        if harm.weights_of_round is None:
            return False
        state.averaging.passed()  # an outer step on trial is not to be taken back from other weights
        return True
