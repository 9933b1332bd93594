"""Robust rules for what is averaged: pure functions of differences Δ_j, one flat float32 vector a contributor.

EDiT's rule (its released code): each contributor's ‖Δ‖ is compared with an exponentially weighted mean and deviation of
its own past, z = (‖Δ‖ − mean) / deviation. With z > 3 its weight is 0; the others share softmax(−‖Δ‖); the mean is
clipped to a norm.

CenteredClip (as in btard), for three contributors or more: v starts at the coordinate-wise median, then

    v ← v + Σ_j w_j (x_j − v) · min(1, τ / ‖x_j − v‖) / Σ_j w_j

with τ the median of the ‖x_j − v‖ at the start, at most 20 times. Nobody moves v by more than τ · w_j / Σ w in a pass,
however far away it lies.

Ours: what ``swarm.norm_history`` says of EDiT's past; τ and the start of CenteredClip are taken over all rows, whatever
their weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from swarm.norm_history import Z_MOST, NormHistory

PASSES_MOST: Final = 20
CONVERGED: Final = 1e-5  # a pass that moves v by less of τ is the last


def edit_weights(norms: Sequence[float], histories: Sequence[NormHistory]) -> list[float]:
    """Each contributor's share, 0 for outliers; all 0 if everybody is one. ``norms`` and ``histories`` run alike."""
    kept = [h.score(norm) <= Z_MOST for norm, h in zip(norms, histories, strict=True)]
    if not any(kept):
        return [0.0] * len(kept)
    smallest = min(norm for norm, keep in zip(norms, kept, strict=True) if keep)
    shares = [math.exp(smallest - norm) if keep else 0.0 for norm, keep in zip(norms, kept, strict=True)]
    return [share / sum(shares) for share in shares]


def edit_mean(differences: Sequence[Tensor], weights: Sequence[float], *, most_norm: float) -> Tensor:
    """Σ w_j Δ_j, scaled down to norm ``most_norm`` if it is longer. What has weight 0 is not read."""  # each (N,)
    mean = torch.zeros_like(differences[0], dtype=torch.float32)
    for difference, weight in zip(differences, weights, strict=True):
        if weight > 0.0:
            mean.add_(difference, alpha=weight)
    norm = float(mean.norm())
    return mean.mul_(most_norm / norm) if norm > most_norm else mean


def centered_clip(vectors: Tensor, weights: Tensor | None = None) -> Tensor:
    """The robust centre (N,) of the finite rows of ``vectors`` (M, N), M ≥ 3; equal weights unless given (M,)."""
    if len(vectors) < 3:
        raise ValueError(f"{len(vectors)} vectors; among fewer than 3 none can be told to be the odd one")
    share = vectors.new_full((len(vectors),), 1.0 / len(vectors)) if weights is None else weights / weights.sum()
    ordered = vectors.sort(dim=0).values
    centre = (ordered[(len(vectors) - 1) // 2] + ordered[len(vectors) // 2]) / 2
    radius = (vectors - centre).norm(dim=1).median()
    if float(radius) == 0.0:
        return centre  # most of them are equal
    for _ in range(PASSES_MOST):
        away = vectors - centre  # (M, N)
        scale = (radius / away.norm(dim=1).clamp_min(1e-30)).clamp_max(1.0)  # (M,)
        step = ((share * scale)[:, None] * away).sum(dim=0)
        centre = centre + step
        if float(step.norm()) < CONVERGED * float(radius):
            break
    return centre
