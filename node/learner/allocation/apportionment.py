"""Whole numbers in proportion to weights, exactly: groups over classes, completions over groups. Pure functions.

    groups       systematic sampling: n_c is ⌊n w_c/Σw⌋ or one more, and n w_c/Σw on average over offsets
    completions  one at a time to the group with the largest w/√(n(n+1)), within bounds

The second rule (Huntington and Hill's) gives the whole numbers that minimise Σ w²/n (Wright 2012); with w = √(p(1−p))
that is the summed variance of the groups' means, and n ∝ √(p(1−p)) where bounds do not bind.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


def systematic_shares(weights: Sequence[float], total: int, offset: float) -> list[int]:
    """``total`` over ``weights``, which are not negative. ``offset`` in [0, 1) is uniform; no weight at all is even."""
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
    """``total`` over ``weights``, each share from ``least`` to ``most``.

    Needs ``least · len(weights) <= total <= most · len(weights)`` and ``least >= 1``; equal weights differ by one.
    """
    if not least * len(weights) <= total <= most * len(weights):
        raise ValueError(f"{total} is not from {least} to {most} for each of {len(weights)}")
    floor = 1e-9  # so that weights of zero share what nobody else can take
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
