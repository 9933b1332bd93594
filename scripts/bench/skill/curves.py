"""Success over processor seconds: points of a run, and what a curve through them says."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from msgspec import Struct


class Point(Struct, frozen=True):
    """Success of the weights that a run had after so many processor seconds."""

    seconds: float
    steps: int
    completions: int  # trained on until then
    success: float


def success_at(points: Sequence[Point], at: float, by: Callable[[Point], float] = lambda p: p.seconds) -> float:
    """Returns the success after ``at`` seconds, or what ``by`` measures: interpolated, and constant after the end."""
    for before, after in itertools.pairwise(points):
        if at <= by(after):
            part = (at - by(before)) / ((by(after) - by(before)) or 1.0)
            return before.success + part * (after.success - before.success)
    return points[-1].success


def area(points: Sequence[Point], seconds: float) -> float:
    """Returns the mean success over the first ``seconds``: ∫ success dt / seconds."""
    ends = sorted({0.0, seconds, *(point.seconds for point in points if point.seconds < seconds)})
    values = [success_at(points, at) for at in ends]
    steps = zip(itertools.pairwise(ends), itertools.pairwise(values), strict=True)
    return sum((to - since) * (first + last) / 2 for (since, to), (first, last) in steps) / seconds


def seconds_until(points: Sequence[Point], goal: float) -> float:
    """Returns the seconds until success was first ``goal``, interpolated; infinity where it never was."""
    for before, after in itertools.pairwise(points):
        if after.success >= goal > before.success:
            part = (goal - before.success) / (after.success - before.success)
            return before.seconds + part * (after.seconds - before.seconds)
    return 0.0 if points[0].success >= goal else math.inf


def last_fifth(points: Sequence[Point], completions: int) -> float:
    """Returns the mean success over the last fifth of the first ``completions``."""
    grid = [completions * (0.8 + 0.2 * n / 20) for n in range(21)]
    return statistics.fmean(success_at(points, at, lambda p: p.completions) for at in grid)
