"""Which weights differ too much from ours to be averaged with them: pure functions of norms, without tensors.

With Δ = θ_j − θ_i, the partner's weights minus ours, and the median m and deviation σ of ‖Δ‖ in the last exchanges of
the family that were accepted (σ is 1.4826 times the median of |‖Δ‖ − m|; both medians are over partners, of the median
of each one's exchanges, and of an even number the lower of the middle two):

    refused      z = (‖Δ‖ − m) / σ > 7                             until enough was seen: ‖Δ‖ > 4 ‖θ_i‖
    weight       min(1, τ / ‖Δ‖), τ = m + σ                         until enough was seen: τ = 2 × what we learnt

What we learnt is the length of our own steps between outer steps, added up: replicas that began alike and learnt as
much lie about √2 times that apart. So before anything is known a partner moves us no further than we have come by
ourselves, whatever it sends. The learner keeps this past, in its checkpoints, and passes it with every request.

The weight is CenteredClip's for one vector: no partner moves us by more than the length τ, and a difference of usual
length counts in full, so that the outer step is then exactly its formula. EDiT refuses z > 3, by mean and deviation: a
liar among eight is not found so, and honest families part (docs/experiments/averaging.md,
adapters.md). To move a median, half of the partners must lie. Over exchanges a median is not enough:
where a liar was the partner in three of the first five, its distance was the usual one for good.

Ours are also: the window and the warm-up; σ of at least a quarter of m; the first bound, without which a stranger's
first weights could be of any size; and the doubling of both bounds with every refusal that no later exchange made up
for. Without the doubling, replicas that drifted apart while they could not reach each other would refuse each other for
ever, and drift further. A refused norm does not enter the history, so that an attacker beside honest partners cannot
raise the bound with weights that are refused anyway.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_Z: Final = 7.0
REMEMBERED: Final = 20  # norms; once a family has changed, the newer half of them decides
WARM_UP: Final = 5  # norms seen before others are compared with them
TO_DEVIATION: Final = 1.4826  # of a normal distribution: standard deviation over median distance from the median
MIN_SPREAD: Final = 0.25  # of the median: a history without spread must not make every later norm an outlier
FAR: Final = 4.0  # times our own norm
AHEAD: Final = 2.0  # times what we learnt: how far a partner may pull before distances are known


@dataclass(frozen=True, slots=True)
class NormHistory:
    """The last norms that were accepted, oldest first, and whose weights they were of; there are fewer partners than
    norms where a checkpoint of an earlier version names none."""

    norms: tuple[float, ...] = ()
    partners: tuple[str, ...] = ()

    @property
    def is_enough(self) -> bool:
        """Whether other norms can be compared with them."""
        return len(self.norms) >= WARM_UP

    @property
    def median(self) -> float:
        """0 if there are no norms."""
        return self._median_of(self.norms)

    @property
    def deviation(self) -> float:
        median = self.median
        spread = self._median_of([abs(norm - median) for norm in self.norms])
        return max(TO_DEVIATION * spread, MIN_SPREAD * median, 1e-12)

    def score(self, norm: float) -> float:
        """Returns z of ``norm``: 0 until enough was seen, infinity for a norm that is not finite."""
        if not math.isfinite(norm):
            return math.inf
        return (norm - self.median) / self.deviation if self.is_enough else 0.0

    def with_norm(self, partner: str, norm: float) -> NormHistory:
        return NormHistory((*self.norms, norm)[-REMEMBERED:], (*self._partners(), partner)[-REMEMBERED:])

    def _partners(self) -> tuple[str, ...]:
        return (*[""] * (len(self.norms) - len(self.partners)), *self.partners)

    def _median_of(self, values: Sequence[float]) -> float:
        """Returns the median over partners of the median of each one's ``values``, one for each norm."""
        of_partner: defaultdict[str, list[float]] = defaultdict(list)
        for partner, value in zip(self._partners(), values, strict=True):
            of_partner[partner].append(value)
        return statistics.median_low(map(statistics.median, of_partner.values())) if of_partner else 0.0


@dataclass(frozen=True, slots=True)
class FamilyPast:
    """The exchanges of one family so far."""

    norms: NormHistory = NormHistory()
    refused: int = 0  # refusals, minus the exchanges since

    def outlier_because(self, norm: float, own_norm: float) -> str | None:
        """Returns why weights at this distance are refused, or None. ``own_norm`` is the norm of our own weights."""
        widened = 2.0**self.refused
        if not math.isfinite(norm):
            return f"their difference from ours has norm {norm}"
        if not self.norms.is_enough:
            if own_norm > 0.0 and norm > widened * FAR * own_norm:
                return f"they differ from ours by {norm / own_norm:.3g} times our own length; {widened * FAR:g} is far"
            return None
        score = self.norms.score(norm)
        if score > widened * MAX_Z:
            return (
                f"they differ from ours by {norm:.3g}, {score:.3g} deviations above the family's median of "
                f"{self.norms.median:.3g}; at most {widened * MAX_Z:g}"
            )
        return None

    def weight(self, norm: float, learnt: float) -> float:
        """Returns the weight, in [0, 1], of a difference with this norm; ``learnt`` is the length of what we learnt."""
        longest = self.norms.median + self.norms.deviation if self.norms.is_enough else AHEAD * learnt
        return 1.0 if norm <= longest else longest / norm

    def after_refusal(self) -> FamilyPast:
        return FamilyPast(self.norms, self.refused + 1)

    def after_averaging(self, partner: str, norm: float) -> FamilyPast:
        """Adds the norm, unless it is 0: nodes that start alike do not show how far replicas lie apart."""
        norms = self.norms.with_norm(partner, norm) if norm > 0.0 else self.norms
        return FamilyPast(norms, max(0, self.refused - 1))
