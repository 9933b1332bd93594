"""Evaluates the policy between two rounds, with the learner's tasks and scorer.

It leaves the run as it is: completions are greedy, and every round seeds its own sampling, so the rounds after an
evaluation are those that would have come without it. A JSONL task has only the rows that training uses too; its figure
says how well these are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from node.configuration import EvaluationSection
from node.engines.engine import Engine
from node.evaluation.evaluation import mean_rewards
from node.evaluation.held_out import HeldOutReward
from node.learner.generation.generation import RewardScorer
from node.policy.tokens import TokenTable
from node.tasks.task import Task


class EvaluationWhileTraining:
    """Measures when it is due. Call it from the learner's thread."""

    def __init__(
        self,
        section: EvaluationSection,
        tokens: TokenTable,
        engine: Callable[[], Engine],
        scorer: RewardScorer,
        tasks: Mapping[str, Task],
        *,
        context: int,
    ) -> None:
        """``engine`` returns one that holds the learner's present weights and that nothing else uses meanwhile."""
        self._section, self._tokens, self._engine = section, tokens, engine
        self._scorer, self._tasks, self._context = scorer, tasks, context

    def is_due(self, round_number: int) -> bool:
        """Returns whether the weights after ``round_number`` rounds are to be measured."""
        return self._section.every_rounds > 0 and round_number % self._section.every_rounds == 0

    def measure(self, round_number: int) -> HeldOutReward:
        rewards = mean_rewards(
            self._tokens,
            self._engine(),
            self._scorer,
            self._tasks,
            prompts=self._section.prompts,
            samples=1,
            temperature=0.0,
            seed=0,
            context=self._context,
        )
        return HeldOutReward(round_number, self._section.prompts, rewards)
