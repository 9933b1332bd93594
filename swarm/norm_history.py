"""Who differs too much to be averaged with: pure functions of norms, no tensor in sight.

With Δ = θ_j − θ_i, the partner's weights minus ours, and the mean and deviation (σ) of ‖Δ‖ in past exchanges of the
family, exponentially weighted (EDiT's rule, its released code):

    refused      z = (‖Δ‖ − mean) / σ > 3                          until enough was seen: ‖Δ‖ > 4 ‖θ_i‖
    weight       min(1, τ / ‖Δ‖), τ = mean + σ                      until enough was seen: 1

The weight is CenteredClip's for one vector: nobody moves us by more than the length τ, and what is of usual length
counts in full, so that the outer step is exactly its formula then.

Ours: decay and warm-up; σ is at least a tenth of the mean; the first bound, without which a stranger's first weights
could be of any size; and both bounds double with every refusal in a row. Without that, replicas that drifted apart
while they were out of reach would refuse each other for ever, and drift further. A refused norm does not enter the
past, and the first one accepted resets the doubling: beside honest partners, an attacker cannot raise the bar with what
is refused anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

Z_MOST: Final = 3.0
DECAY: Final = 0.98  # of the past, an exchange
WARM_UP: Final = 10  # norms seen before any is compared with them
SPREAD_LEAST: Final = 0.1  # of the mean: a past without spread must not make every later norm an outlier
FAR: Final = 4.0  # times our own norm


@dataclass(frozen=True, slots=True)
class NormHistory:
    """Exponentially weighted mean and variance of the norms that were accepted."""

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0

    @property
    def deviation(self) -> float:
        return max(math.sqrt(self.variance), SPREAD_LEAST * self.mean, 1e-12)

    def score(self, norm: float) -> float:
        """z of ``norm``: 0 until enough was seen, infinite for a norm that is no finite number."""
        if not math.isfinite(norm):
            return math.inf
        return (norm - self.mean) / self.deviation if self.seen >= WARM_UP else 0.0

    def after(self, norm: float) -> NormHistory:
        """With one more norm, unless it is an outlier."""
        return self if self.score(norm) > Z_MOST else self.with_norm(norm)

    def with_norm(self, norm: float) -> NormHistory:
        weight = max(1.0 - DECAY, 1.0 / (self.seen + 1))  # a plain mean at first
        step = norm - self.mean
        return NormHistory(
            self.mean + weight * step, (1.0 - weight) * (self.variance + weight * step * step), self.seen + 1
        )


@dataclass(frozen=True, slots=True)
class FamilyPast:
    """What one family's exchanges have shown so far."""

    norms: NormHistory = NormHistory()
    refused: int = 0  # in a row

    def outlier_because(self, norm: float, own_norm: float) -> str | None:
        """Why weights at this distance are refused, or None. ``own_norm`` is that of our own weights."""
        widened = 2.0**self.refused
        if not math.isfinite(norm):
            return f"their difference from ours has norm {norm}"
        if self.norms.seen < WARM_UP:
            if own_norm > 0.0 and norm > widened * FAR * own_norm:
                return f"they differ from ours by {norm / own_norm:.3g} times our own length; {widened * FAR:g} is far"
            return None
        score = self.norms.score(norm)
        if score > widened * Z_MOST:
            return (
                f"they differ from ours by {norm:.3g}, {score:.3g} deviations above the family's mean of "
                f"{self.norms.mean:.3g}; at most {widened * Z_MOST:g}"
            )
        return None

    def weight(self, norm: float) -> float:
        """Of a difference of this norm, in (0, 1]."""
        if self.norms.seen < WARM_UP:
            return 1.0
        longest = self.norms.mean + self.norms.deviation
        return 1.0 if norm <= longest else longest / norm

    def after_refusal(self) -> FamilyPast:
        return FamilyPast(self.norms, self.refused + 1)

    def after_averaging(self, norm: float) -> FamilyPast:
        """A norm of 0 (nodes that start alike) says nothing of how far replicas lie apart."""
        return FamilyPast(self.norms.with_norm(norm) if norm > 0.0 else self.norms)
