"""What a round changes, apart from the weights and the optimizer's moments."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from node.averaging import rules
from node.averaging.guard import AveragingGuard
from node.evaluation.held_out import HeldOutReward
from node.learner.allocation.success import SuccessTracker
from node.learner.answers.hints import Hints
from node.learner.answers.right_answers import Imitation, Rehearsal
from node.learner.generation.unfinished import UnfinishedGroup
from node.learner.influence.guard import InfluenceState
from node.learner.steps.rate_control import RateState


@dataclass(slots=True)
class LearnerState:
    """Whole after every round; part of checkpoints."""

    round: int = 0  # rounds done
    policy_version: int = 0
    tokens_generated: int = 0
    groups_shared: int = 0  # offered to peers; checkpoints have it under this name
    foreign_groups_used: int = 0
    foreign_completions: int = 0  # trained on, each as often as it was
    bytes_fetched: int = 0
    success: SuccessTracker = field(default_factory=SuccessTracker)
    unfinished: tuple[UnfinishedGroup, ...] = ()  # own groups that a later round resumes
    outer: rules.State | None = None  # of weight averaging; None before the first outer step
    averaging: AveragingGuard = field(default_factory=AveragingGuard)  # partners, and the outer step on trial
    outer_round: int = 0  # rounds done when the weights of the last outer step were offered; 0 before the first
    influence: InfluenceState = field(default_factory=InfluenceState)
    rehearsal: Rehearsal = field(default_factory=Rehearsal)
    imitation: Imitation = field(default_factory=Imitation)
    hints: Hints = field(default_factory=Hints)
    rate: RateState = field(default_factory=RateState)
    evaluation: HeldOutReward | None = None  # the newest, of the weights after the round that it names

    def copied(self) -> LearnerState:
        """Returns a state of its own; what is never written to is shared."""
        shared = (self.outer, self.averaging.trial, self.unfinished, self.influence.watch)
        return copy.deepcopy(self, {id(each): each for each in shared})
