"""AdamW (Loshchilov and Hutter, arXiv 1711.05101) with both moments in float32, by torch's own operator.

m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
w ← w − lr · wd · w − lr · m̂ / (√v̂ + ε)        m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from node.learner.steps.adamw.block_codes import BlockCodes
from node.learner.steps.adamw.saved_moments import BETA1, BETA2, EPSILON, Moments, SavedMoments
from node.learner.steps.adamw.slices import slices_of


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    first: Tensor  # as the weights
    second: Tensor
    steps: list[int]  # of each slice
    count: Tensor  # () float32, for torch, which counts in one operation and steps in another

    def tensors(self) -> dict[str, Tensor]:
        return {"exp_avg": self.first, "exp_avg_sq": self.second}

    def take(self, saved: SavedMoments) -> None:
        for ours, theirs in ((self.first, saved.first), (self.second, saved.second)):
            ours.copy_(theirs.values() if isinstance(theirs, BlockCodes) else theirs)


class Float32Moments(Moments[_Moments]):
    """``Moments`` in float32, beside their weights."""

    def step(self, name: str, index: int, part: slice, gradient: Tensor, rate: float, weight_decay: float) -> None:
        weights, moments = self._weights[name], self._moments[name]
        moments.count.fill_(moments.steps[index])
        adamw(
            [weights.view(-1)[part]],
            [gradient],
            [moments.first.view(-1)[part]],
            [moments.second.view(-1)[part]],
            [],
            [moments.count],
            fused=True,
            amsgrad=False,
            beta1=BETA1,
            beta2=BETA2,
            lr=rate,
            weight_decay=weight_decay,
            eps=EPSILON,
            maximize=False,
        )
        moments.steps[index] += 1

    def _zeros(self, weights: Tensor) -> _Moments:
        steps = [0 for _ in slices_of(weights.numel(), weights.device)]
        count = torch.zeros((), device=weights.device)
        return _Moments(torch.zeros_like(weights), torch.zeros_like(weights), steps, count)
