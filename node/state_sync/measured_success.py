"""The success of a policy as this node measures it, before it keeps the weights of a stranger.

    success = mean over our tasks of the mean reward of greedy completions

Greedy, so that weights that are nearly the same are found nearly the same. The prompts are drawn from each task's
validation set, from a seed that nobody else knows: honest peers train on none of them, and a liar's weights cannot have
been made for just these.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from node.engines.torch import TorchEngine
from node.evaluation.evaluation import mean_rewards
from node.learner.generation.own_rollouts import RewardScorer
from node.learner.objective.forward import Network
from node.policy.policy import Policy
from node.state_sync.state_verdict import MeasuredSuccess
from node.tasks.split import Part, held_out_prompts
from node.tasks.task import Prompt, Task

COMPLETIONS: Final = 192  # of one measurement: a standard error of at most .036
LEAST_PROMPTS: Final = 16  # of a task, where there are many tasks
PROMPT_SEEDS: Final = 1 << 31


class SuccessMeasurement:
    """Measures the weights that ``policy`` holds when it is called, each time on the same prompts."""

    def __init__(
        self, policy: Policy, tasks: Mapping[str, Task], scorer: RewardScorer, *, rows: int, draws: random.Random
    ) -> None:
        self._policy, self._tasks, self._scorer, self._rows = policy, tasks, scorer, rows
        self._first_seed = draws.randrange(PROMPT_SEEDS)

    @cached_property
    def _prompts(self) -> dict[str, list[Prompt]]:
        prompts = max(LEAST_PROMPTS, math.ceil(COMPLETIONS / len(self._tasks)))
        return held_out_prompts(self._tasks, Part.VALIDATION, prompts, first_seed=self._first_seed)

    def __call__(self) -> MeasuredSuccess:
        rewards = mean_rewards(
            self._policy.tokens,
            TorchEngine(self._policy, rows=self._rows, seed=0),
            self._scorer,
            self._tasks,
            self._prompts,
            samples=1,
            temperature=0.0,
            seed=0,
            context=Network.of(self._policy.model).context,
        )
        return MeasuredSuccess(sum(rewards.values()) / len(rewards), sum(map(len, self._prompts.values())))
