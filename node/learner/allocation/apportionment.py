"""Whole numbers in proportion to weights, with an exact sum: groups over classes, completions over groups. Pure.

    groups       systematic sampling: n_c is ⌊n w_c/Σw⌋ or one more, and n w_c/Σw on average over offsets
    completions  one at a time to the group with the largest w/√(n(n+1)), within bounds

The second rule (Huntington and Hill's) gives the whole numbers that minimise Σ w²/n (Wright 2012); with w = √(p(1−p))
that is the summed variance of the groups' means, and n ∝ √(p(1−p)) where no bound applies.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


def systematic_shares(weights: Sequence[float], total: int, offset: float) -> list[int]:
    """Divides ``total`` over ``weights`` ≥ 0, evenly if all are 0. ``offset`` is drawn uniformly from [0, 1)."""
    whole = math.fsum(weights)
    shares = [weight / whole if whole > 0 else 1 / len(weights) for weight in weights]
    counts: list[int] = []
    passed, reached = 0, 0.0
    for index, share in enumerate(shares):
        reached += share * total
        points = total if index == len(shares) - 1 else min(total, math.floor(reached + offset))
        counts.append(points - passed)
        passed = points
    return counts


def bounded_shares(weights: Sequence[float], total: int, *, least: int, most: int) -> list[int]:
    """Divides ``total`` over ``weights``, each share from ``least`` to ``most``.

    Needs ``least >= 1``; equal weights get shares that differ by one at most. Raises ``ValueError`` unless
    ``least · len(weights) <= total <= most · len(weights)``.
    """
    if not least * len(weights) <= total <= most * len(weights):
        raise ValueError(f"{total} is not from {least} to {most} for each of {len(weights)}")
    floor = 1e-9  # so that weights of zero share what the others cannot take
    shares = [least] * len(weights)
    queue = [(-max(w, floor) / math.sqrt(least * (least + 1)), i) for i, w in enumerate(weights) if least < most]
    heapq.heapify(queue)
    for _ in range(total - least * len(weights)):
        _, index = heapq.heappop(queue)
        shares[index] += 1
        if shares[index] < most:
            count = shares[index]
            heapq.heappush(queue, (-max(weights[index], floor) / math.sqrt(count * (count + 1)), index))
    return shares
