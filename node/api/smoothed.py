"""Smoothed success on each task from the record of a run: own completions, exponentially weighted by the round.

    M = Σ_k λ^k n_k R_k / Σ_k λ^k n_k       R_k: mean reward of n_k own completions, k rounds of this task ago; λ = .9

Unlike the learner's own V_θ (``node.learner.allocation.success``) it starts from no prior: after one round M is what
that round showed. Its noise comes from the scatter of the rounds around it, with which ``node.api.losses`` judges a
fall:

    v ← λ v + (1 − λ)(R − M)²,  se² = v · Σ w² / (Σ w)²,  w = λ^k n_k

Pure: each step returns the next state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

DECAY: Final = 0.9
FIRST_VARIANCE: Final = 0.05  # of a round's mean around the smoothed one, before any scatter was seen
LEAST_VARIANCE: Final = 0.0025  # a task that never failed may fail once


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Success on one task after some rounds of it."""

    total: float = 0.0  # Σ λ^k n_k R_k
    weight: float = 0.0  # Σ λ^k n_k
    squares: float = 0.0  # Σ (λ^k n_k)²
    variance: float = FIRST_VARIANCE
    rounds: int = 0  # of this task

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight > 0 else 0.0

    @property
    def squared_error(self) -> float:
        """The variance of ``mean``, from the scatter of rounds."""
        if self.weight <= 0:
            return max(self.variance, LEAST_VARIANCE)
        return max(self.variance, LEAST_VARIANCE) * self.squares / self.weight**2

    def after(self, reward: float, completions: int) -> Smoothed:
        """Returns the success after one more round of the task. A reward that is not finite changes nothing."""
        if not math.isfinite(reward):
            return self
        count = max(1, completions)
        variance = self.variance
        if self.rounds:
            variance = DECAY * variance + (1 - DECAY) * (reward - self.mean) ** 2
        return Smoothed(
            DECAY * self.total + count * reward,
            DECAY * self.weight + count,
            DECAY * DECAY * self.squares + count * count,
            variance,
            self.rounds + 1,
        )
