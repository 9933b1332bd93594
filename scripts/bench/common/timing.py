"""Times of contenders that take turns in one process."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(repeats: int, *works: Callable[[], object]) -> list[float]:
    """Returns the shortest time of each; all run in turn, ``repeats`` times, after one uncounted turn."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(repeats + 1):
        for work, taken in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            if turn:
                taken.append(time.perf_counter() - began)
    return [min(taken) for taken in times]
