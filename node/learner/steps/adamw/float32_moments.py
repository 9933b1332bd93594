"""AdamW (Loshchilov and Hutter, arXiv 1711.05101) with both moments in float32, by torch's own operator.

m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
w ← w − lr · wd · w − lr · m̂ / (√v̂ + ε)        m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from node.learner.steps.adamw.block_codes import BlockCodes
from node.learner.steps.adamw.constants import BETA1, BETA2, EPSILON
from node.learner.steps.adamw.saved_moments import SavedMoments
from node.learner.steps.adamw.slices import slices_of


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    first: Tensor  # as the weights
    second: Tensor
    steps: list[int]  # of each slice
    count: Tensor  # () float32, for torch, which counts in one operation and steps in another


class Float32Moments:
    """``Moments`` in float32, beside their weights."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = dict(weights)
        self._moments: dict[str, _Moments] = {}

    def prepare(self) -> None:
        self._moments |= {name: _zeros(w) for name, w in self._weights.items() if name not in self._moments}

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
            fused=weights.device.type in ("cpu", "cuda"),
            amsgrad=False,
            beta1=BETA1,
            beta2=BETA2,
            lr=rate,
            weight_decay=weight_decay,
            eps=EPSILON,
            maximize=False,
        )
        moments.steps[index] += 1

    def state(self, name: str) -> dict[str, Tensor]:
        if name not in self._moments:
            return {}
        moments = self._moments[name]
        step = float(moments.steps[0]) if moments.steps else 0.0  # a device may hold no row of a short tensor
        return {"step": torch.tensor(step), "exp_avg": moments.first, "exp_avg_sq": moments.second}

    def restore(self, name: str, saved: SavedMoments) -> None:
        moments = self._moments[name] = self._moments.get(name) or _zeros(self._weights[name])
        moments.steps[:] = [saved.step] * len(moments.steps)
        for ours, theirs in ((moments.first, saved.first), (moments.second, saved.second)):
            ours.copy_(theirs.values() if isinstance(theirs, BlockCodes) else theirs)


def _zeros(weights: Tensor) -> _Moments:
    steps = [0 for _ in slices_of(weights.numel())]
    count = torch.zeros((), device=weights.device)
    return _Moments(torch.zeros_like(weights), torch.zeros_like(weights), steps, count)
