"""Success as a function of the tokens generated, and the share of them that a condition needs to reach another's level.

    S_c(t)    success of condition c after t tokens: mean of its seeds and of the last ``TRAILING`` of the budget
    level     S_base(T), the base's success after the whole budget T, the fewest tokens that any run generated
    share     first t with S_c(t) ≥ level / first t with S_base(t) ≥ level;   infinite where S_c stays below

Means first, then the crossing: where a run either finds a skill or does not, most runs never cross the mean of all, and
a mean over those that do would omit a method's failures. The interval is the percentile bootstrap's over seeds, with
the same draws for both conditions; an infinite end means that many redraws never reach the level.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scripts.experiments.harness.plans import RunResult
from scripts.experiments.reports.intervals import tokens_to_reach

POINTS: Final = 200  # at which a course is evaluated
TRAILING: Final = 0.1  # share of the budget: two or three measurements, which reduces their noise
REDRAWS: Final = 2000

Courses = NDArray[np.float64]  # (seeds, points)


def course(result: RunResult) -> tuple[list[float], list[float]]:
    """Returns (tokens generated, mean sampled success) of the run's first node at each measurement."""
    node = result.nodes[0]
    spent = [0.0, *itertools.accumulate(map(float, node.tokens))]
    return [spent[m.round] for m in node.measurements], [
        statistics.fmean(m.sampled.values()) for m in node.measurements
    ]


def success_at(result: RunResult, tokens: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the success after each number of ``tokens``; between measurements it is a line."""
    at: NDArray[np.float64] = np.interp(np.asarray(tokens), *course(result))
    return at


def success_per_token(result: RunResult, budget_tokens: float) -> float:
    """Returns the mean success over the first ``budget_tokens``: ∫ success d(tokens) / budget."""
    tokens, _ = course(result)
    points = np.array([*(t for t in tokens if t < budget_tokens), budget_tokens])
    return float(np.trapezoid(success_at(result, points), points) / budget_tokens)


def smoothed_courses(runs: Sequence[RunResult], budget_tokens: float) -> tuple[NDArray[np.float64], Courses]:
    """Returns (points,) tokens up to the budget, and each run's mean success in the ``TRAILING`` share before each."""
    width = round(POINTS * TRAILING)
    every = np.linspace(0.0, budget_tokens, POINTS + 1)
    read = np.array([success_at(run, every) for run in runs])  # (seeds, points + 1)
    windows = np.lib.stride_tricks.sliding_window_view(read, width, axis=1).mean(axis=-1)
    return every[width - 1 :], windows


@dataclass(frozen=True, slots=True)
class TokenShare:
    """Tokens that a condition needs for the base's level, as a share of the base's; infinite if it never gets there."""

    value: float
    low: float
    high: float
    seeds_there: int  # runs that reach the level alone
    seeds: int

    def text(self) -> str:
        if math.isinf(self.value):
            return "not reached"
        above = f"{self.high:.2f}" if math.isfinite(self.high) else "never"
        return f"{self.value:.2f} ({self.low:.2f} to {above})"


def share_of_tokens(runs: Sequence[RunResult], base: Sequence[RunResult], budget_tokens: float) -> TokenShare:
    """Returns the share of ``runs`` against ``base``, which needs the same seeds. At most 1 for the base itself."""
    tokens, ours = smoothed_courses(runs, budget_tokens)
    _, theirs = smoothed_courses(base, budget_tokens)
    if ours.shape != theirs.shape:
        raise ValueError(f"{len(runs)} runs against {len(base)}: a comparison needs the same seeds")
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(runs), (REDRAWS, len(runs)))
    shares = [_share(tokens, ours[seeds].mean(axis=0), theirs[seeds].mean(axis=0)) for seeds in drawn]
    low, high = np.quantile(shares, [0.025, 0.975], method="inverted_cdf")
    level = theirs[:, -1].mean()
    value = _share(tokens, ours.mean(axis=0), theirs.mean(axis=0))
    return TokenShare(value, float(low), float(high), int((ours.max(axis=1) >= level).sum()), len(runs))


def _share(tokens: NDArray[np.float64], ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    level = float(theirs[-1])
    spent, base = (tokens_to_reach(tokens.tolist(), course.tolist(), level) for course in (ours, theirs))
    return math.inf if spent is None else spent / (base or tokens[-1])
