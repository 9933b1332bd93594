"""CenteredClip (as in btard), a robust mean of three contributors or more: a candidate that the node does not use.

v starts at the coordinate-wise median of the rows x_j, then, τ being the median of the ‖x_j − v‖ at the start,

    v ← v + mean_j (x_j − v) · min(1, τ / ‖x_j − v‖)

at most 20 times. No x_j moves v by more than τ / M in a pass, at any distance. A node averages in pairs, with one
vector beside its own; for one vector this is the weight min(1, τ / ‖Δ‖) of ``swarm.averaging.norm_history``.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

MAX_PASSES: Final = 20
CONVERGED: Final = 1e-5  # a pass that moves v by less than this share of τ is the last


def centered_clip(vectors: Tensor) -> Tensor:
    """Returns the robust centre (N,) of the finite rows of ``vectors`` (M, N). Raises ``ValueError`` where M < 3."""
    if len(vectors) < 3:
        raise ValueError(f"{len(vectors)} vectors; among fewer than 3 no outlier can be identified")
    ordered = vectors.sort(dim=0).values
    centre = (ordered[(len(vectors) - 1) // 2] + ordered[len(vectors) // 2]) / 2
    radius = (vectors - centre).norm(dim=1).median()
    if float(radius) == 0.0:
        return centre  # most of them are equal
    for _ in range(MAX_PASSES):
        away = vectors - centre  # (M, N)
        scale = (radius / away.norm(dim=1).clamp_min(1e-30)).clamp_max(1.0)  # (M,)
        step = (scale[:, None] * away).mean(dim=0)
        centre = centre + step
        if float(step.norm()) < CONVERGED * float(radius):
            break
    return centre
