"""Whether the learner's own success has fallen by more than noise: Page's CUSUM on its own groups of each round.

    z = Σ_g (m_g − b_τ) / √(Σ_τ v_τ (n_τ + n_τ²/c_τ))     m_g: mean reward of own group g, clipped to 0 … 1
    S ← max(0, S + min(−z, 3) − k)                          k = .5; harm where S ≥ h = 8

b_τ and v_τ are mean and variance of the group means of task τ, exponentially weighted over MEMORY groups; the second
term under the root is the error of b_τ itself, from c_τ groups. They take in a round only ``DELAY_ROUNDS`` later, and
none while S is above h/2, so that a fall is compared with what came before it. Success that rises leaves b_τ behind,
which only makes the watch less sensitive.

Page's test with k = .5 finds a fall of 1.5 σ a round in about h/1 rounds. Siegmund's approximation of the mean time to
a false alarm, (e^2kb − 2kb − 1)/2k² with b = h + 1.166, is 19,000 rounds; tests simulate it. ``min(−z, 3)`` makes that
hold for success that is not normal: no single round raises an alarm. Where newcomers were learnt from, 5.5 is
enough, with a false alarm in 1,500 rounds, of which few have newcomers: it is they alone whom it costs something.
While b_τ is still new, alarms are more frequent: in the first 60 rounds 3 % of learners have one at 8, 10 % one at 5.5.

A fall too slow for the memory is not seen: by less than about half a σ while MEMORY groups of a task come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

SLACK: Final = 0.5  # k: a fall of one σ a round is what matters
HARM: Final = 8.0  # h
HARM_OF_NEWCOMERS: Final = 5.5
SUSPECTED: Final = 4.0  # h/2
DELAY_ROUNDS: Final = 8  # what a fall needs to be seen, so that b is of before it
MOST_SIGMAS: Final = 3.0
MEMORY: Final = 64  # groups of a task, b_τ's: shorter makes b_τ uncertain, longer lets it lag behind success that rises
FIRST_VARIANCE: Final = 0.12  # of a task's group means before any was seen: half of what a coin's is at most
LEAST_VARIANCE: Final = 0.04  # a task that never fails may fail once
FIRST_GROUPS: Final = 4.0  # of a task that make its first mean; until then it is not judged
WARM_GROUPS: Final = 64  # of all tasks, until which all are taken in at once: two rounds of 32, or four of 16

Groups = Sequence[tuple[str, Sequence[float]]]  # one round's own groups: task, rewards


@dataclass(frozen=True, slots=True)
class Level:
    """What a task's success was."""

    mean: float = 0.0
    variance: float = FIRST_VARIANCE
    groups: float = 0.0  # that the mean stands for, at most the memory

    def after(self, means: Sequence[float]) -> Level:
        level = self
        for value in means:
            groups = min(level.groups + 1.0, float(MEMORY))
            step = 1.0 / groups
            apart = value - level.mean
            variance = level.variance + (apart * apart - level.variance) / max(groups, FIRST_GROUPS)
            level = Level(level.mean + step * apart, variance, groups)
        return level


@dataclass(frozen=True, slots=True)
class SuccessWatch:
    """One watch after some round. ``after_round`` returns the next; nothing is changed in place."""

    levels: Mapping[str, Level] = field(default_factory=dict)
    waiting: tuple[Mapping[str, tuple[float, ...]], ...] = ()  # group means by task, of the newest rounds
    score: float = 0.0  # S
    since: int | None = None  # the round in which S left 0

    @property
    def is_warm(self) -> bool:
        """Whether enough is known of the usual success for a fall to show."""
        return sum(level.groups for level in self.levels.values()) >= WARM_GROUPS

    def lost_share(self, rounds: int) -> float:
        """Returns the share of the usual success that the newest ``rounds`` lacked, at most ``DELAY_ROUNDS``."""
        newest = [
            (self.levels[task].mean, value)
            for round_ in self.waiting[-rounds:]
            for task, means in round_.items()
            if task in self.levels
            for value in means
        ]
        expected = sum(usual for usual, _ in newest)
        return 1.0 - sum(value for _, value in newest) / expected if expected > 0 else 0.0

    def after_round(self, round_number: int, groups: Groups) -> SuccessWatch:
        by_task: dict[str, list[float]] = {}
        for task, rewards in groups:
            by_task.setdefault(task, []).append(sum(min(max(r, 0.0), 1.0) for r in rewards) / len(rewards))
        lost = variance = 0.0
        for task, means in by_task.items():
            level = self.levels.get(task)
            if level is None or level.groups < FIRST_GROUPS:
                continue
            lost += sum(level.mean - value for value in means)
            spread = max(level.variance, LEAST_VARIANCE)
            variance += spread * (len(means) + len(means) ** 2 / level.groups)
        sigmas = lost / math.sqrt(variance) if variance > 0 else 0.0
        score = max(0.0, self.score + min(sigmas, MOST_SIGMAS) - SLACK)
        rising = replace(
            self,
            score=score,
            since=None if score == 0 else round_number if self.since is None else self.since,
            waiting=(*self.waiting, {task: tuple(means) for task, means in by_task.items()}),
        )
        return rising._taken_in(DELAY_ROUNDS if self.is_warm else 0)

    def accepting(self) -> SuccessWatch:
        """Returns the watch that takes the success of the newest rounds for the usual one."""
        return replace(self, levels={}, score=0.0, since=None)._taken_in(0)

    def forgetting(self) -> SuccessWatch:
        """Returns the watch without the newest rounds, whose weights were taken back."""
        return replace(self, waiting=(), score=0.0, since=None)

    def _taken_in(self, delay: int) -> SuccessWatch:
        """Takes in waiting rounds but the newest ``delay``; none while a fall is suspected."""
        if self.score > SUSPECTED:
            return replace(self, waiting=self.waiting[-4 * DELAY_ROUNDS :])
        old, new = self.waiting[: len(self.waiting) - delay], self.waiting[len(self.waiting) - delay :]
        if len(self.waiting) <= delay:
            return self
        levels = dict(self.levels)
        for round_ in old:
            for task, means in round_.items():
                levels[task] = levels.get(task, Level()).after(means)
        return replace(self, levels=levels, waiting=new)

    def snapshot(self) -> dict[str, Any]:
        return {
            "levels": {task: [each.mean, each.variance, each.groups] for task, each in self.levels.items()},
            "waiting": [{task: list(means) for task, means in each.items()} for each in self.waiting],
            "score": self.score,
            "since": self.since,
        }

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any]) -> SuccessWatch:
        return cls(
            {task: Level(*map(float, each)) for task, each in snapshot["levels"].items()},
            tuple({task: tuple(map(float, means)) for task, means in each.items()} for each in snapshot["waiting"]),
            float(snapshot["score"]),
            snapshot["since"],
        )
