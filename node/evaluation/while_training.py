"""Evaluates the policy between two rounds, with the learner's tasks and scorer.

It leaves the run as it is: completions are greedy, and every round seeds its own sampling, so the rounds after an
evaluation are those that would have come without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from node.configuration import EvaluationSection
from node.engines.engine import Engine
from node.evaluation.evaluation import mean_rewards
from node.evaluation.held_out import HeldOutReward
from node.learner.generation.own_rollouts import RewardScorer
from node.policy.tokens import TokenTable
from node.tasks.split import Part, held_out_sets
from node.tasks.task import Prompt, Task

log = logging.getLogger(__name__)

Prompts = Mapping[str, list[Prompt]]  # by task


@dataclass(eq=False)
class EvaluationWhileTraining:
    """Measures when it is due. Call it from the learner's thread.

    ``engine`` returns one that holds the learner's present weights and that nothing else uses meanwhile.
    """

    section: EvaluationSection
    tokens: TokenTable
    engine: Callable[[], Engine]
    scorer: RewardScorer
    tasks: Mapping[str, Task]
    context: int

    def is_due(self, round_number: int) -> bool:
        """Returns whether the weights after ``round_number`` rounds are to be measured."""
        return self.section.every_rounds > 0 and round_number % self.section.every_rounds == 0

    def measure(self, round_number: int) -> HeldOutReward | None:
        """Returns None where no task has held-out questions: data sets of a few rows."""
        validation, test = self._prompts
        if not test:
            return None
        chooses = self._measured(validation, 0.0)
        found = self._measured(test, 0.0)
        return HeldOutReward(round_number, self.section.prompts, found, sum(chooses.values()) / len(chooses))

    def baseline(self, temperature: float) -> dict[str, float]:
        """Returns the mean reward by task of one completion a prompt of the test set, sampled at ``temperature``."""
        return self._measured(self._prompts[1], temperature)

    def _measured(self, prompts: Prompts, temperature: float) -> dict[str, float]:
        return mean_rewards(
            self.tokens, self.engine(), self.scorer, self.tasks, prompts,
            samples=1, temperature=temperature, seed=0, context=self.context,
        )  # fmt: skip

    @cached_property
    def _prompts(self) -> tuple[Prompts, Prompts]:
        """The validation and the test set, of the tasks that have questions in both."""
        parts = (Part.VALIDATION, Part.TEST)
        validation, test = held_out_sets(self.tasks, parts, self.section.prompts).values()
        both = [name for name in self.tasks if name in validation and name in test]
        without = [name for name in self.tasks if name not in both]
        if without:
            log.warning("not measured, for they have too few rows to hold some out: %s", ", ".join(without))
        return {name: validation[name] for name in both}, {name: test[name] for name in both}
