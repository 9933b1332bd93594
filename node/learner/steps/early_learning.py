"""Learning begins on own groups as they end, while an engine elsewhere samples the others (Periodic Asynchrony,
arXiv 2511.18871).

The policy does not change within a round, so the gradient of a group can be computed as soon as the group has ended;
gradients add up, and the optimizer steps once, when the round's groups and those of others are there. So the round
stays what it is up to rounding (``OptimizerSteps.begin``). It takes memory for both at a time, and pays only where
learner and engine have a device each: on one they slow each other down by as much (docs/engines.md).

Groups are taken in the order in which they end, in lots that fill a pass on every device that learns. So which groups
are computed together depends on what was sampled, not on how fast: a round that is repeated is the same to the bit.
What fills no lot is learnt from with the groups of others. The learner's devices are several, so that a lot for which
memory runs out ends them all, like a step (``sharding``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from node.configuration import ObjectiveSection
from node.learner.generation.own_rollouts import RewardScorer, Rollout, scoring_item
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.batch import TrainingGroup
from node.learner.objective.training_groups import own_training_group
from node.learner.steps.step import BegunStep, may_begin
from node.tasks.scorer import Scores


class EarlyLearning:
    """The early learning of one learner. Only the learner's thread calls it: between two answers of the engine, and in
    the round."""

    def __init__(
        self,
        objective: ObjectiveSection,
        scorer: RewardScorer,
        begin: Callable[[BegunStep, Sequence[TrainingGroup]], None],
        drop: Callable[[], None],
        lot_tokens: Callable[[], int],
    ) -> None:
        """``begin`` adds groups to a begun step, ``OptimizerSteps.begin``; ``drop`` drops their gradient.
        ``lot_tokens``: of prompts and answers, at least so many in a lot."""
        self._objective, self._scorer = objective, scorer
        self._begin, self._drop, self._lot_tokens = begin, drop, lot_tokens
        self._wanted = may_begin(objective)
        self._lot: list[Rollout] = []
        self._learnt: list[Rollout] = []
        self._groups: list[TrainingGroup] = []  # of ``_learnt``
        self.scores: dict[Rollout, Scores] = {}  # of rollouts of this round, as far as they were scored early
        self.begun = BegunStep()

    def start(self) -> None:
        """Forgets everything: a round's groups are generated, for the first time or again."""
        self._lot, self.scores = [], {}
        self.drop()

    def drop(self) -> None:
        """Forgets what was learnt; scores stay."""
        if self._groups:
            self.begun.clear()
            self._drop()
        self._learnt, self._groups = [], []

    def ended(self, rollout: Rollout) -> None:
        """Takes a group that has ended; learns from it once there are enough for a pass."""
        if not self._wanted:
            return
        self._lot.append(rollout)
        if sum(len(each.prompt_ids) + each.tokens for each in self._lot) >= self._lot_tokens():
            lot, self._lot = self._lot, []
            self._learn(lot)

    @property
    def groups(self) -> list[TrainingGroup]:
        """What was learnt from, in the order of ``ordered``."""
        return self._groups

    def ordered(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Returns the round's rollouts, those first that were learnt from."""
        learnt = set(self._learnt)
        return [*self._learnt, *(each for each in rollouts if each not in learnt)]

    def _learn(self, lot: Sequence[Rollout]) -> None:
        scores = self._scorer.score([scoring_item(each.prompt.ref, each.texts) for each in lot])
        self.scores |= dict(zip(lot, scores, strict=True))
        rule = AdvantageRule(self._objective.research.advantage)
        groups = [
            own_training_group(each, scored.rewards, self._objective, rule)
            for each, scored in zip(lot, scores, strict=True)
        ]
        self._learnt += lot
        self._groups += groups
        self._begin(self.begun, groups)
