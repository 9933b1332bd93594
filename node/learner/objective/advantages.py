"""Advantages: how much better a completion was than expected. The rules differ in what they expect.

Within a group of G completions of one prompt, with rewards R:

    group         A_i = (R_i − mean R) / (std R + 1e-4), std unbiased          (GRPO as in TRL)
    mean          A_i = R_i − mean R                                           (Dr. GRPO)
    median        A_i = (R_i − median R) / (MAD + 1e-3), |A_i| ≤ 5             (MC-GRPO, arXiv 2601.22582)
    batch         A_i = (R_i − mean R) / (std of all rewards of the batch + 1e-4)
    min_variance  A_i = R_i − b*, b* = Σ ‖g_i‖² R_i / Σ ‖g_i‖²                 (VCPO; see ``baselines``)
    learner       A_i = max(R_i − V_θ, 0)                                      (for foreign groups)

MAD is the median of |R_i − median R|. With binary rewards it is 0 as soon as more than half are equal, and A would be
of the order of 1000. Departures from MC-GRPO: in that case the unbiased std replaces MAD, and |A| is bounded. The paper
draws G + 1 samples so that the median is one of them, and drops that one; here a completion with A = 0 costs nothing.

A foreign group's own mean says how a completion compares with its generator, not with the learner. Any function of the
prompt is a valid baseline, so the learner's own success V_θ is used. The sampling policy is far away there, so the
learner learns only from completions better than its own: the negative part is set to zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.configuration import AdvantageMethod

STD_EPSILON: Final = 1e-4
MAD_EPSILON: Final = 1e-3
MEDIAN_BOUND: Final = 5.0  # a single right answer among 26 has (1 − 0) / std = 5.1; a larger value says nothing new


@dataclass(frozen=True, slots=True)
class AdvantageRule:
    """How a group's rewards become advantages, with what the rule needs of the whole batch."""

    method: AdvantageMethod = "group"
    batch_std: float = 0.0  # of all rewards of the batch, unbiased; for "batch"

    @classmethod
    def of(cls, method: AdvantageMethod, rewards_of_groups: Iterable[Sequence[float]]) -> AdvantageRule:
        rewards = [reward for group in rewards_of_groups for reward in group]
        return cls(method, float(np.std(rewards, ddof=1)) if len(rewards) > 1 else 0.0)

    def __call__(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """(G,) → (G,); zero throughout when all rewards are equal or there is only one.

        For "min_variance" R − mean R, which ``baselines`` replaces once gradients are known.
        """
        if self.method == "group":
            return group_advantages(rewards)
        if self.method == "median":
            return median_advantages(rewards)
        return mean_advantages(rewards, scale=self.batch_std + STD_EPSILON if self.method == "batch" else 1.0)


def group_advantages(rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """(G,) → (G,); zero throughout when all rewards are equal or there is only one."""
    if _all_equal(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    centred = rewards - rewards.mean()
    return np.asarray(centred / (rewards.std(ddof=1) + STD_EPSILON), dtype=np.float32)


def mean_advantages(rewards: NDArray[np.float32], *, scale: float = 1.0) -> NDArray[np.float32]:
    """(R − mean R) / scale, (G,) → (G,); zero throughout when all rewards are equal or there is only one."""
    if _all_equal(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    return np.asarray((rewards - rewards.mean()) / scale, dtype=np.float32)


def median_advantages(rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """(G,) → (G,), within ``MEDIAN_BOUND``; zero throughout when all rewards are equal or there is only one."""
    if _all_equal(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    centred = rewards - np.median(rewards)
    deviation = float(np.median(np.abs(centred)))
    scale = deviation + MAD_EPSILON if deviation > 0 else float(rewards.std(ddof=1)) + STD_EPSILON
    return np.asarray(np.clip(centred / scale, -MEDIAN_BOUND, MEDIAN_BOUND), dtype=np.float32)


def learner_relative_advantages(rewards: NDArray[np.float32], success: float) -> NDArray[np.float32]:
    """(G,) → (G,), never negative. ``success`` is V_θ, of the prompt's class or of the prompt."""
    return np.asarray(np.maximum(rewards - np.float32(success), 0.0), dtype=np.float32)


def learner_relative_gain(mean_reward: float, success: float) -> float:
    """How much better a group did than the learner does on that class of prompts; candidates are ranked by it."""
    return mean_reward - success


def _all_equal(rewards: NDArray[np.float32]) -> bool:
    return len(rewards) < 2 or bool((rewards == rewards[0]).all())
