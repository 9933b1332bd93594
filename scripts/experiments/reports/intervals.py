"""Means with 95 % confidence intervals over seeds: mean ± t(.975, n - 1) · s / √n, by Student's distribution.

Seeds are the only independent draws: the nodes of one run learn from each other, so a run counts as one value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

T_975: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip  # for 1 to 30 degrees of freedom


def t_975(degrees: int) -> float:
    """The .975 quantile of Student's t: tabulated to 30 degrees of freedom, then by two terms of its expansion."""
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: an interval needs two values")
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over ``count`` values; ``half_width`` of its 95 % interval is infinite for one value."""

    mean: float
    half_width: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def overlaps(self, other: Estimate) -> bool:
        return self.low <= other.high and other.low <= self.high

    def text(self, digits: int = 3) -> str:
        """Returns the estimate as tables show it."""
        if math.isinf(self.half_width):
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.half_width:.{digits}f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean of ``values`` with its interval. Raises ``ValueError`` without values."""
    if not values:
        raise ValueError("an estimate of no values")
    if len(values) == 1:
        return Estimate(float(values[0]), math.inf, 1)
    half_width = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), half_width, len(values))


def paired(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Returns the mean difference of two conditions, seed by seed: randomness that both share cancels."""
    return estimate([value - other for value, other in zip(values, others, strict=True)])


def over_tokens(rewards: Sequence[float], tokens: Sequence[int], budget_tokens: float) -> float:
    """Returns the mean sampled reward over the first ``budget_tokens`` generated: ∫ reward d(tokens) / budget.

    Raises ``ValueError`` if the run generated fewer.
    """
    area = spent = 0.0
    for reward, generated in zip(rewards, tokens, strict=True):
        share = min(float(generated), budget_tokens - spent)
        area, spent = area + reward * share, spent + share
        if spent >= budget_tokens:
            return area / budget_tokens
    raise ValueError(f"the run generated {spent:.0f} tokens, the budget is {budget_tokens:.0f}")


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Returns the means over the last ``window`` values, fewer at the beginning."""
    return [statistics.fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]
