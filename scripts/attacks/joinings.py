"""How often an honest, unlike peer that joins is said to have harmed, and how often in ten days, at a node's defaults.

Real learners first (``poisoning.meeting``): two built-in models train alone, meet as strangers, part, and meet again
under other names, each with its own guard. What is measured of them drives the rest:

    joinings   a recorded joining, its groups drawn again: those of a task in a round are drawn, with replacement, from
               that task's groups of the two rounds before and after, on the same side of the joining. So level, spread,
               trend and dips are the recorded ones, with their chance, and chance comes on top of it once more
    days       success of all tasks walks together, and that of each by itself, from the level at the end of the
               recordings, as fast as they did (``walk_of``); peers teach all the time, and one joins every hour

The guard itself decides on joinings, with the recorded shares of its peers; ``watch.compared`` on the days, at
``ROUNDS_A_SECOND``.

    python -m scripts.attacks.joinings [--seeds 2] [--first-seed 0] [--models wren,finch] [--joinings 200] [--days 10]
    python -m scripts.attacks.joinings --finished [--json]    # of the recordings that are there

A recording takes about 80 processor seconds, is kept in .experiments/joinings, and is not made again.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Final

import numpy as np

from node.configuration import LearnerSection
from node.learner.influence.guard import Guard, InfluenceState
from node.learner.influence.watch import HARM, HARM_OF_NEWCOMERS, ROUNDS
from scripts.attacks.false_alarms import Array, Node, scores
from scripts.attacks.poisoning.meeting import TOGETHER, Meeting, Seen, met
from scripts.bench.common.reporting import Figure, figures_parser, report

MODELS: Final = ("wren", "robin", "finch")
ALONE: Final = (20, 60)  # rounds, in turn
NEIGHBOURS: Final = 2  # rounds before and after one, from which its groups are drawn
DAYS: Final = 10
LEAST_DAYS: Final = 0.01  # a round of each of the runs ``SIDE_BY_SIDE``
ROUNDS_A_SECOND: Final = 2.0
SIDE_BY_SIDE: Final = 1000  # runs that the days are divided among
WARMING: Final = 100  # rounds of each that are not counted
JOINS_EVERY: Final = int(3600 * ROUNDS_A_SECOND)
LAG: Final = 16  # rounds
NEWCOMER_ROUNDS: Final = 30  # after which a fall is no longer put down to it


@dataclass(frozen=True)
class Joining:
    """One side of a meeting."""

    seen: Seen
    join: int  # round, from 1

    @property
    def first(self) -> int:
        """The first round that the watch remembers, or that of the last parting."""
        return max(1, self.join - ROUNDS)

    def drawn_again(self, draws: np.random.Generator) -> Iterator[tuple[int, dict[str, list[float]]]]:
        last = self.join + TOGETHER - 1
        for number in range(self.first, last + 1):
            low, high = (self.first, self.join - 1) if number < self.join else (self.join, last)
            around = range(max(low, number - NEIGHBOURS), min(high, number + NEIGHBOURS) + 1)
            groups = {}
            for task, means in self.seen.groups[number - 1].items():
                pool = [mean for each in around for mean in self.seen.groups[each - 1].get(task, ())]
                groups[task] = list(draws.choice(pool, len(means)))
            yield number, groups

    def accuses(self, draws: np.random.Generator | None) -> bool:
        """Whether a new guard accuses anybody after the peer joined; None: with the groups as they were."""
        guard = Guard(InfluenceState(), completions=4, staleness=0, seed="joinings")
        recorded = ((n, self.seen.groups[n - 1]) for n in range(self.first, self.join + TOGETHER))
        for number, groups in recorded if draws is None else self.drawn_again(draws):
            shares = self.seen.shares[number - 1]
            guard.state.shares[number] = dict(shares)
            guard.state.standings.taught(list(shares), number)
            found = [(task, [mean]) for task, means in groups.items() for mean in means]
            if guard.after_round(number, found, lambda _: None) is not None and number >= self.join:
                return True
        return False


def walk_of(series: Sequence[Sequence[float | None]]) -> float:
    """Returns √q, what success walks in a round: its squared differences over ``LAG`` rounds have q (LAG − 1) more than
    those over one, whose chance is the same. Learning and dips are counted as well."""

    def squares(lag: int) -> float:
        pairs = [(a, b) for each in series for a, b in zip(each, each[lag:], strict=False)]
        return float(np.mean([(b - a) ** 2 for a, b in pairs if a is not None and b is not None]))

    return float(np.sqrt(max(0.0, squares(LAG) - squares(1)) / (LAG - 1)))


@dataclass(frozen=True)
class Measured:
    """How success behaves in recordings."""

    level: float  # at their end, over all tasks
    walk: float  # of all tasks together, a round
    walk_of_task: float  # of one
    node: Node


def measured(sides: Sequence[Seen]) -> Measured:
    tasks = sorted({task for seen in sides for groups in seen.groups for task in groups})
    of_tasks = [[groups.get(task, []) for groups in seen.groups] for seen in sides for task in tasks]
    whole = [[mean_of([*chain.from_iterable(groups.values())]) for groups in seen.groups] for seen in sides]
    some = [np.asarray(means) for each in of_tasks for means in each if len(means) > 1]
    scatter = [means.var(ddof=1) for means in some]
    coins = [means.mean() * (1 - means.mean()) + means.var(ddof=1) / len(means) for means in some]  # p (1 − p)
    share = float(np.sum(scatter) / np.sum(coins))  # = 1/c + (1 − 1/c)/(κ + 1), c completions a group
    defaults = LearnerSection()
    alone = 1 / defaults.completions
    return Measured(
        level=float(np.mean([each[-TOGETHER:] for each in whole])),
        walk=walk_of(whole),
        walk_of_task=walk_of([[mean_of(means) if means else None for means in each] for each in of_tasks]),
        node=Node(len(tasks), defaults.own_groups, defaults.completions, (1 - alone) / max(share - alone, 1e-2) - 1),
    )


def mean_of(values: Sequence[float]) -> float:
    return float(np.mean(values))


def accusations_in_days(found: Measured, days: float, *, seed: int) -> tuple[int, float]:
    """Returns how often peers are accused in so many days, and the highest score."""
    together, each = found.walk**2, found.walk_of_task**2
    common = max(0.0, (together - each / found.node.tasks) / (1 - 1 / found.node.tasks))
    steps = np.sqrt([common, max(0.0, each - common)])

    def moves(draws: np.random.Generator, p: Array, number: int) -> Array:
        p = np.abs(p + draws.normal(0.0, steps[0], (len(p), 1)) + draws.normal(0.0, steps[1], p.shape))
        return 1.0 - np.abs(1.0 - p)

    rounds = int(days * 86400 * ROUNDS_A_SECOND) // SIDE_BY_SIDE
    score = scores(found.node, found.level, moves, runs=SIDE_BY_SIDE, rounds=WARMING + rounds, seed=seed)[WARMING:]
    one_after_another = np.arange(rounds)[:, None] + rounds * np.arange(SIDE_BY_SIDE)
    newcomers = one_after_another % JOINS_EVERY < NEWCOMER_ROUNDS
    above = score >= np.where(newcomers, HARM_OF_NEWCOMERS, HARM)
    return int(np.sum(above[1:] & ~above[:-1]) + np.sum(above[0])), float(score.max())


def wilson_high(count: int, of: int) -> float:
    """Returns the upper end of the 95 % interval of a share (Wilson, 1927)."""
    z = 1.96
    return (count + z**2 / 2 + z * math.sqrt(count * (1 - count / of) + z**2 / 4)) / (of + z**2)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not LEAST_DAYS <= days < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: at least {LEAST_DAYS} days are allowed")
    return days


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="meetings of each two models (default 2)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--joinings", type=int, default=200, help="drawn from the recorded ones (default 200)")
    parser.add_argument("--days", type=_days, default=DAYS, help=f"honest days (default {DAYS}, a processor minute)")
    parser.add_argument("--finished", action="store_true", help="make no recording; take those that are there")
    options = parser.parse_args()
    wanted = [
        Meeting(models, seed, ALONE[(seed + index) % len(ALONE)])
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for index, models in enumerate(combinations(MODELS, 2))
        if set(models) <= set(options.models.split(","))
    ]
    sides, joinings = list[Seen](), list[Joining]()
    for meeting in wanted:
        if not options.finished or meeting.path.is_file():
            both = met(meeting).sides
            sides += both
            joinings += [Joining(seen, join) for seen in both for join in meeting.joins]
            found = ", ".join(f"{seen.model} {max(seen.scores):.1f}" for seen in both)
            print(f"{meeting}: highest scores {found}", file=sys.stderr)
    if not sides:
        raise SystemExit("no meeting is recorded yet: leave --finished out")
    draws = np.random.default_rng(options.first_seed)
    accused = sum(joinings[n % len(joinings)].accuses(draws) for n in range(options.joinings))
    real = sum(len(seen.harms) for seen in sides)
    success = measured(sides)
    in_days, highest = accusations_in_days(success, options.days, seed=options.first_seed)
    of_joinings = Figure("accused", 100 * accused / options.joinings, "% of joinings", "lower", "≤ 1")
    report(
        "joinings",
        [
            Figure("joinings of real learners", len(joinings), "", "higher"),
            Figure("their rounds", sum(len(seen.groups) for seen in sides), "", "higher"),
            Figure("accusations in all of these", real, "", "lower", "none"),
            Figure("their highest score, of 4.5 and 5 that accuse", max(max(s.scores) for s in sides), "σ", "lower"),
            Figure("joinings drawn from these", options.joinings, "", "higher"),
            of_joinings,
            Figure("upper end of its 95 % interval", 100 * wilson_high(accused, options.joinings), "%", "lower"),
            Figure("the same of the real ones alone", 100 * wilson_high(real, len(joinings)), "%", "lower"),
            Figure("level of success at their end", success.level, "", "higher"),
            Figure("what it walks in a round, all tasks", success.walk, "", "lower"),
            Figure("the same, one task", success.walk_of_task, "", "lower"),
            Figure("κ of prompts", success.node.kappa, "", "higher"),
            Figure("honest days", options.days, "", "higher"),
            Figure("accusations in these days", in_days, "", "lower", "≤ 1 in ten"),
            Figure("highest score of these", highest, "σ", "lower"),
        ],
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
