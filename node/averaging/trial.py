"""Whether an outer step did harm: own success after it beside own success before, by task. Pure functions.

For each task, groups n of own completions after the step and m before it, x̄ their mean rewards, s² the variance of the
mean rewards before (``node.own_success``), N = Σ n:

    d = Σ n (x̄_after − x̄_before) / N
    σ² = Σ n² s² (1/n + 1/m) / N²  +  WALK² (r/3 + r₀/3 + 1/2)          z = d / σ

    harmful    z < −``MAX_DEVIATIONS`` and d < −``MIN_SHARE`` of the success before
    harmful    the partner's sum S < −``MAX_SUM``, where S ← min(0, S + z + ``ALLOWANCE``) after each of its steps

The second term is what success that walks by ``WALK`` a round, in all tasks together, does to the difference between
means over r rounds after the step and over the r₀ rounds that the groups before it took.

The rewards are those of the groups that a round learns from anyway, so that a trial costs no generation. A group is the
unit, since completions of one prompt are alike. The variance is that from before: it is what chance would do if nothing
had changed. Harm that one step does not show above the noise shows in the partner's sum (Page's CUSUM): with its
constants it accuses an honest partner once in about nine hundred steps that change nothing, and finds one whose steps
each cost one deviation in about ten. A trial of an honest step is lost less often than once in a hundred, also where
groups are few, alike, or hardly ever fail, and where success walks by ``WALK`` a round. ``python -m
scripts.attacks.false_alarms`` prints the rates.

What is not seen: harm to what own prompts do not show, and harm below ``MIN_SHARE`` in a step and below the allowance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from node.own_success import group_variance

MAX_DEVIATIONS: Final = 3.0
MIN_SHARE: Final = 0.1  # smaller harm is the next rounds' own learning to repair
TRIAL_ROUNDS: Final = 5
WALK: Final = 0.01  # success a round
REMEMBERED: Final = 32  # groups of each task before the step
FEWEST: Final = 4  # of them, to compare with
ALLOWANCE: Final = 0.5
MAX_SUM: Final = 5.0

GroupMeans = Mapping[str, Sequence[float]]  # by task, the mean reward of each group


@dataclass(frozen=True, slots=True)
class SuccessChange:
    """Own success after a step beside before it, over the tasks that both have groups of."""

    groups: int = 0  # after the step
    before: float = 0.0
    change: float = 0.0  # d
    deviation: float = math.inf  # σ

    @property
    def score(self) -> float:
        """z; 0 where nothing can be compared."""
        return self.change / self.deviation

    @property
    def is_harm(self) -> bool:
        return self.score < -MAX_DEVIATIONS and self.change < -MIN_SHARE * self.before

    def in_words(self) -> str:
        return (
            f"own success fell from {self.before:.3f} to {self.before + self.change:.3f} over {self.groups} groups, "
            f"{-self.score:.1f} deviations"
        )


def compared(before: GroupMeans, since: GroupMeans, rounds: int) -> SuccessChange:
    """Compares the means of groups before a step with those of the ``rounds`` since."""
    groups, base, change, variance, span = 0, 0.0, 0.0, 0.0, 0.0
    for task, means in since.items():
        known, n = np.asarray(before.get(task, ()), dtype=np.float64), len(means)
        if n == 0 or len(known) < FEWEST:
            continue
        expected = float(known.mean())
        spread = float(group_variance(np.asarray(float(len(known))), known.sum(), (known**2).sum()))
        groups, base = groups + n, base + n * expected
        change += n * (statistics.fmean(means) - expected)
        variance += n**2 * spread * (1 / n + 1 / len(known))
        span += len(known) * rounds  # n times the rounds that the groups before took
    if groups == 0:
        return SuccessChange()
    walk = WALK**2 * (rounds / 3 + span / groups / 3 + 0.5)
    return SuccessChange(groups, base / groups, change / groups, math.sqrt(variance / groups**2 + walk))


def sum_after(before: float, score: float) -> float:
    """Returns a partner's sum S after a step whose trial ended with ``score``."""
    return min(0.0, before + score + ALLOWANCE)


def with_groups(history: GroupMeans, found: GroupMeans, most: int | None = REMEMBERED) -> dict[str, tuple[float, ...]]:
    """Returns the history with more groups, the latest of each task last; ``most`` of each are kept."""
    tasks = dict.fromkeys([*history, *found])
    joined = {task: (*history.get(task, ()), *found.get(task, ())) for task in tasks}
    return joined if most is None else {task: means[-most:] for task, means in joined.items()}
