"""Whether the learner's own success has fallen by more than noise and learning explain, on own groups of each round.

The newest w rounds are compared with those before them, for w of ``WINDOWS``. Of task τ they have n groups, whose mean
rewards (clipped to 0 … 1) sum to s; the rounds before them, weighted by a = e^(−age/MEMORY), have the mean b and the
variance v of group means (``node.own_success``); A₁ and A₂ are the sums of a and of a² over their groups:

    d_w = Σ_τ (n b − s) / Σ_τ n
    σ²_w = Σ_τ v (n + n² A₂/A₁²) / (Σ_τ n)²  +  q ((w+1)(2w+1)/6w + MEMORY/2)
    score = max_w d_w/σ_w                                       harm where it reaches ``HARM``

The first term of σ² is chance in both sides. The second is what success that walks at random, by √q a round and in all
tasks together, does to the difference. q is measured: d²_w less the first term, divided by q's factor, averaged over
the longer windows and over about ``WALK_MEMORY`` rounds. Learning moves success as well, so q counts it. This is the
generalized likelihood ratio over windows (Willsky and Jones, 1976; Lai, 1995) with a walk in its null hypothesis. Every
round is compared from the start, so no error is carried from round to round.

``python -m scripts.attacks.false_alarms`` prints how often honest peers are accused and how soon a fall is seen;
docs/threats.md has its table. ``HARM_OF_NEWCOMERS`` is lower, since such an alarm costs newcomers alone.

What is not seen is a fall that a walk of q makes as well. At success .5 and 16 groups a round a fall by half is seen
after some four rounds, one by a quarter seldom. At success .2 a steady decline is seen, a single fall by half seldom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from node.own_success import group_variance

HARM: Final = 5.0  # standard deviations
HARM_OF_NEWCOMERS: Final = 4.5
WINDOWS: Final = (2, 4, 8, 16)  # rounds
MEMORY: Final = 16.0  # rounds: longer makes b surer, shorter follows success that moves
ROUNDS: Final = 64  # that are remembered: the longest window and three memories
LEAST_GROUPS: Final = 4.0  # A₁ of a task, below which it is not compared
WARM_GROUPS: Final = 64  # of all tasks: two rounds of 32, or four of 16
FIRST_WALK: Final = 0.005  # √q before anything is measured, success a round
LEAST_WALK: Final = 0.002
MOST_WALK: Final = 0.02  # one who lets success swing to hide a fall in it gains no more than this
WALK_MEMORY: Final = 256  # rounds
WALK_WINDOWS: Final = WINDOWS[2:]  # in the shorter ones chance hides the walk
OUTLIER: Final = 3.0  # σ: a difference counts for no more than this in the walk

Groups = Sequence[tuple[str, Sequence[float]]]  # one round's own groups: task, rewards
Array = NDArray[np.float64]

_AGE: Final = np.arange(ROUNDS)[::-1]
_IN_WINDOW: Final = np.stack([(w > _AGE).astype(np.float64) for w in WINDOWS], axis=1)  # (ROUNDS, windows)
_BEFORE: Final = np.stack([np.where(w <= _AGE, np.exp((w - _AGE) / MEMORY), 0.0) for w in WINDOWS], axis=1)
_WALKS: Final = np.array([(w + 1) * (2 * w + 1) / (6 * w) + MEMORY / 2 for w in WINDOWS])  # q's factor, by window
_MEASURES_WALK: Final = np.array([w in WALK_WINDOWS for w in WINDOWS])


def compared(groups: Array, sums: Array, squares: Array, walk: Array) -> tuple[Array, Array]:
    """Compares each window with the rounds before it.

    Args:
        groups: how many own groups of each task each round had, (…, tasks, ``ROUNDS``), the newest round last.
        sums: of their mean rewards, and ``squares`` of these squared; shaped alike.
        walk: q, (…).

    Returns:
        d_w/σ_w for each of ``WINDOWS``, (…, windows), 0 where there is nothing to compare with; and q after this round.
    """
    n, s = groups @ _IN_WINDOW, sums @ _IN_WINDOW
    weight, total = groups @ _BEFORE, sums @ _BEFORE
    known = weight >= LEAST_GROUPS
    variance = group_variance(weight, total, squares @ _BEFORE)
    weight = np.where(known, weight, 1.0)
    mean = total / weight
    counted = np.maximum(np.sum(np.where(known, n, 0.0), axis=-2), 1.0)
    lost = np.sum(np.where(known, n * mean - s, 0.0), axis=-2) / counted
    chance = n + n**2 * (groups @ _BEFORE**2) / weight**2
    chance = np.sum(np.where(known, variance * chance, 0.0), axis=-2) / counted**2
    whole = chance + walk[..., None] * _WALKS
    excess = ((np.minimum(lost**2, OUTLIER**2 * whole) - chance) / _WALKS)[..., _MEASURES_WALK]
    measured = walk + (excess.mean(axis=-1) - walk) / WALK_MEMORY
    some = np.any(known[..., _MEASURES_WALK], axis=(-2, -1))
    return lost / np.sqrt(whole), np.where(some, np.clip(measured, LEAST_WALK**2, MOST_WALK**2), walk)


@dataclass(frozen=True, slots=True)
class OwnRound:
    """The own groups of one round. ``by_task`` has n, s and the sum of squares for each task that had a group.

    n counts the groups, s is the sum of their mean rewards, each clipped to 0 … 1, and the third is the sum of the
    squares of these means.
    """

    number: int
    by_task: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class SuccessWatch:
    """One watch after some round. ``after_round`` returns the next; nothing is changed in place."""

    rounds: tuple[OwnRound, ...] = ()  # the newest last, ``ROUNDS`` at most
    walk: float = FIRST_WALK**2  # q
    score: float = 0.0  # at least 0
    since: int | None = None  # the round that the window of the score begins with; None at score 0

    @property
    def is_warm(self) -> bool:
        """Whether enough is known of the usual success for a fall to show."""
        return sum(groups for each in self.rounds for groups, _, _ in each.by_task.values()) >= WARM_GROUPS

    def lost_share(self, rounds: int) -> float:
        """Returns the share of the success from before the fall that its rounds lack, the newest ``rounds`` of them at
        most; 0 where they lack none."""
        if self.since is None:
            return 0.0
        before: dict[str, tuple[float, float]] = {}  # by task, weighted: groups, sum
        for each in self.rounds:
            if each.number < self.since:
                weight = math.exp((each.number - self.since) / MEMORY)
                for task, (groups, total, _) in each.by_task.items():
                    known = before.get(task, (0.0, 0.0))
                    before[task] = known[0] + weight * groups, known[1] + weight * total
        expected = found = 0.0
        for each in [each for each in self.rounds if each.number >= self.since][-rounds:]:
            for task, (groups, total, _) in each.by_task.items():
                if task in before:
                    expected, found = expected + groups * before[task][1] / before[task][0], found + total
        return max(0.0, 1.0 - found / expected) if expected > 0 else 0.0

    def after_round(self, round_number: int, groups: Groups) -> Self:
        by_task: dict[str, tuple[float, float, float]] = {}
        for task, rewards in groups:
            mean = sum(min(max(reward, 0.0), 1.0) for reward in rewards) / len(rewards)
            count, total, squares = by_task.get(task, (0.0, 0.0, 0.0))
            by_task[task] = count + 1.0, total + mean, squares + mean * mean
        rounds = (*self.rounds, OwnRound(round_number, by_task))[-ROUNDS:]
        tasks = {task: row for row, task in enumerate(dict.fromkeys(t for each in rounds for t in each.by_task))}
        history = np.zeros((3, len(tasks), ROUNDS))
        for column, each in enumerate(rounds, start=ROUNDS - len(rounds)):
            for task, numbers in each.by_task.items():
                history[:, tasks[task], column] = numbers
        scores, walk = compared(history[0], history[1], history[2], np.asarray(self.walk))
        widest = int(np.argmax(scores))
        score = max(0.0, float(scores[widest]))
        since = rounds[-min(WINDOWS[widest], len(rounds))].number if score > 0 else None
        return replace(self, rounds=rounds, walk=float(walk), score=score, since=since)

    def accepting(self) -> Self:
        """Returns the watch for which the success of the fall's rounds is now the usual one."""
        return self._with([each for each in self.rounds if self.since is not None and each.number >= self.since])

    def forgetting(self) -> Self:
        """Returns the watch without the rounds of the fall, whose weights were taken back."""
        return self._with([each for each in self.rounds if self.since is None or each.number < self.since])

    def _with(self, rounds: Sequence[OwnRound]) -> Self:
        return replace(self, rounds=tuple(rounds), score=0.0, since=None)
