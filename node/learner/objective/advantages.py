"""Advantages: how much better a completion was than expected. The rules differ in what they expect.

Within a group of G completions of one prompt, with rewards R:

    group       A_i = (R_i − mean R) / (std R + 1e-4), std unbiased          (GRPO as in TRL)
    mean        A_i = R_i − mean R                                           (Dr. GRPO)
    median      A_i = (R_i − median R) / (MAD + 1e-3), |A_i| ≤ 5             (MC-GRPO, arXiv 2601.22582)
    batch       A_i = (R_i − mean R) / (std of all rewards of the batch + 1e-4)
    turn        A_it = (G_it − mean_j G_jt) / (std G + 1e-4), of action t of a conversation; otherwise as group
    learner     A_i = max(R_i − V_θ, 0)                                      (for foreign groups)
    capability  A_i = κ·(R_i − mean R / κ) / (std R + 1e-4)                  (for foreign groups; HACPO)

MAD is the median of |R_i − median R|. With binary rewards it is 0 as soon as more than half are equal, and A would be
of the order of 1000. Departures from MC-GRPO: in that case the unbiased std replaces MAD, and |A| is bounded. The paper
draws G + 1 samples so that the median is one of them, and drops that one; here a completion with A = 0 costs nothing.

By turns an action is credited with what was earned from its own turn on, since nothing that it does changes what came
before: the reward-to-go of the policy gradient (Sutton et al., 2000), with a baseline of the group for each turn.

    r_it    by how much the reward grew with action t of conversation i
    G_it    Σ_k≥t r_ik; beyond the end of a conversation, what its last action earned
    std G   the root of the mean, over turns, of the unbiased variance within the group

Where only the last action earns something, G_it is R_i for every t, and A_it the group's advantage. GRPO's process
supervision (DeepSeekMath, arXiv 2402.03300, 4.1.3) also sums what comes after, of rewards that are normalised before
and over all steps together; that gives long answers other sums than short ones. Where turns earn something each, the
reward-to-go learnt more in the same rounds than the whole episode's advantage (docs/experiments/credit.md).

A foreign group's own mean says how a completion compares with its generator, not with the learner. Any function of the
prompt is a valid baseline, so the learner's own success V_θ is used. The sampling policy is far away there, so the
learner learns only from completions better than its own: the negative part is set to zero.

HACPO (arXiv 2603.02604, equations 5 and 6; the authors' hacpo_core_algos.py) has κ = P_source / P_learner within .1 to
10, P being the share of positive rewards, mean of the last 5 batches: mean R / κ is what the learner would have had on
that prompt. As in the authors' code a group of equal rewards teaches nothing, and a baseline above 1 is replaced by the
learner's own mean. Departures: a group is of one generator, since prompts differ from node to node, where the paper has
all generators' completions of one prompt in one baseline and one std; so the learner's own mean is V_θ of the class.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.configuration import AdvantageMethod

STD_EPSILON: Final = 1e-4
MAD_EPSILON: Final = 1e-3
EQUAL_RETURNS: Final = 1e-9  # sums of rewards that differ by less differ by rounding
MEDIAN_BOUND: Final = 5.0  # a single right answer among 26 has (1 − 0) / std = 5.1; a larger value says nothing new

CAPABILITY_BATCHES: Final = 5
MIN_CAPABILITY: Final = 1e-8
MIN_CAPABILITY_RATIO, MAX_CAPABILITY_RATIO = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class AdvantageRule:
    """How a group's rewards become advantages, with what the rule needs of the whole batch."""

    method: AdvantageMethod = "turn"
    batch_std: float = 0.0  # of all rewards of the batch, unbiased; for "batch"

    @classmethod
    def of(cls, method: AdvantageMethod, rewards_of_groups: Iterable[Sequence[float]]) -> AdvantageRule:
        rewards = [reward for group in rewards_of_groups for reward in group]
        return cls(method, float(np.std(rewards, ddof=1)) if len(rewards) > 1 else 0.0)

    def __call__(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """(G,) → (G,); zero throughout when all rewards are equal or there is only one."""
        if self.method in ("turn", "group"):
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


def turn_advantages(turn_rewards: Sequence[Sequence[float]], turns: int) -> NDArray[np.float32]:
    """Returns the advantage of each action (G, turns), of which a conversation has the first ones, from what each
    earned, nothing where that is unknown; zero throughout when all earn the same in every turn or there is only one."""
    returns = np.zeros((len(turn_rewards), turns))  # (G, T)
    for row, earned in zip(returns, turn_rewards, strict=True):
        if earned:
            row[:] = earned[-1]
            row[: len(earned)] = np.cumsum(earned[::-1])[::-1]
    centred = returns - returns.mean(axis=0)
    if len(returns) < 2 or np.abs(centred).max() < EQUAL_RETURNS:
        return np.zeros(returns.shape, dtype=np.float32)
    scale = math.sqrt(float(returns.var(axis=0, ddof=1).mean())) + STD_EPSILON
    return np.asarray(centred / scale, dtype=np.float32)


def learner_relative_advantages(rewards: NDArray[np.float32], success: float) -> NDArray[np.float32]:
    """(G,) → (G,), never negative. ``success`` is V_θ, of the prompt's class or of the prompt."""
    return np.asarray(np.maximum(rewards - np.float32(success), 0.0), dtype=np.float32)


def learner_relative_gain(mean_reward: float, success: float) -> float:
    """How much better a group did than the learner does on that class of prompts; candidates are ranked by it."""
    return mean_reward - success


def capability_advantages(rewards: NDArray[np.float32], ratio: float, success: float) -> NDArray[np.float32]:
    """(G,) → (G,); zero throughout when all rewards are equal. ``ratio`` is κ, ``success`` V_θ of the class."""
    if _all_equal(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    baseline = float(rewards.mean()) / ratio
    centred = rewards - np.float32(success if baseline > 1 else baseline)
    return np.asarray(ratio * centred / (rewards.std(ddof=1) + STD_EPSILON), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """P of the learner and of each peer in the last batches, for advantages by capability. Not in checkpoints: a
    continued run begins anew."""

    batches: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=CAPABILITY_BATCHES))

    def observe(self, groups: Iterable[tuple[str, Sequence[float]]]) -> None:
        """Adds one batch: the source and the rewards of each of its groups."""
        rewards: dict[str, list[float]] = {}
        for source, of_group in groups:
            rewards.setdefault(source, []).extend(of_group)
        self.batches.append({source: statistics.fmean(r > 0 for r in each) for source, each in rewards.items()})

    def ratio(self, source: str, learner: str) -> float:
        """Returns κ within its bounds; 1 where either is in none of the batches."""
        of_source, of_learner = ([batch[name] for batch in self.batches if name in batch] for name in (source, learner))
        if not of_source or not of_learner:
            return 1.0
        ratio = _capability(of_source) / _capability(of_learner)
        return min(max(ratio, MIN_CAPABILITY_RATIO), MAX_CAPABILITY_RATIO)


def _capability(shares: Sequence[float]) -> float:
    return max(statistics.fmean(shares), MIN_CAPABILITY)


def _all_equal(rewards: NDArray[np.float32]) -> bool:
    return len(rewards) < 2 or bool((rewards == rewards[0]).all())
