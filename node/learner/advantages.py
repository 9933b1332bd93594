"""How much better a completion was than expected. Whose expectation is the question.

    group             A_i = (R_i − mean R) / (std R + 1e-4), std unbiased          (GRPO as in TRL)
    learner-relative  A_i = max(R_i − V_θ(class), 0)                               (for groups of others)

A foreign group's own mean says how a completion compares with its generator, not with the learner, and gives nothing
for a group that is all right, which is what a learner at zero needs most. Any function of the prompt is a valid
baseline, so the learner's own running success V_θ on that class of prompts is used. The sampling policy is far away
there, so only what is better than the learner is learnt from: the negative part is set to zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STD_EPSILON = 1e-4


def group_advantages(rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """(G,) → (G,); zero throughout when all rewards are equal or there is only one."""
    if len(rewards) < 2 or bool((rewards == rewards[0]).all()):
        return np.zeros(len(rewards), dtype=np.float32)
    centred = rewards - rewards.mean()
    return np.asarray(centred / (rewards.std(ddof=1) + STD_EPSILON), dtype=np.float32)


def learner_relative_advantages(rewards: NDArray[np.float32], success: float) -> NDArray[np.float32]:
    """(G,) → (G,), never negative. ``success`` is V_θ of the prompt's class."""
    return np.asarray(np.maximum(rewards - np.float32(success), 0.0), dtype=np.float32)


def learner_relative_gain(mean_reward: float, success: float) -> float:
    """What candidates are ranked by: how much better the group did than the learner does on that class of prompts."""
    return mean_reward - success
