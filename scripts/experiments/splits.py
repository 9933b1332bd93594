"""Does a family stay one? Honest replicas that drift and average in pairs, with outliers refused, counted less, or not.

    python -m scripts.experiments.splits [--families 100] [--json]

Replicas are vectors that walk at random: every round each takes a step of length one, correlated or not with its last
one. Each becomes due as a node does, waits for another that is due, and takes NoLoCo's step with it unless either finds
the other an outlier (``swarm.averaging.norm_history``, as nodes have it). A family is split at the end if its last
exchanges leave some members without a way to others. No model, no network: 80 rounds take milliseconds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.averaging.rules import RELEASED
from node.averaging.weight_averager import interval
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.averaging.norm_history import FamilyPast

SIZE: Final = 400
EVERY: Final = 5  # rounds between two outer steps, on average
CORRELATION: Final = 0.8  # of a step with the one before, as under Adam
BEGIN: Final = 5.0  # size of a value at the start: far more than the walk
LATE: Final = 3  # the last third of the exchanges decides

Vector = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Replica:
    weights: Vector  # θ
    due: int
    outer: Vector = field(init=False)  # φ
    momentum: Vector = field(init=False)  # m
    step: Vector = field(init=False)  # the last one
    past: FamilyPast = field(default_factory=FamilyPast)
    learnt: float = 0.0

    def __post_init__(self) -> None:
        self.outer, self.momentum, self.step = self.weights.copy(), 0 * self.weights, 0 * self.weights

    def refuses(self, distance: float, most: float | None) -> bool:
        """``most``: deviations above the median that are not refused; None for the nodes' rule."""
        if most is None:
            refused = self.past.outlier_because(distance, float(np.linalg.norm(self.weights))) is not None
        else:
            refused = self.past.norms.score(distance) > most * 2.0**self.past.refused
        if refused:
            self.past = self.past.after_refusal()
        return refused

    def average(self, theirs: Vector, distance: float, *, weighing: bool) -> None:
        self.learnt += float(np.linalg.norm(self.weights - self.outer))
        weight = self.past.weight(distance, self.learnt) if weighing else 1.0
        mean = (self.weights + weight * theirs) / (1 + weight)
        self.momentum = RELEASED.momentum * self.momentum + RELEASED.outer_rate * (mean - self.outer)
        self.outer = self.outer + self.momentum
        self.weights, self.past = self.outer.copy(), self.past.after_averaging(distance)


@dataclass(frozen=True, slots=True)
class Family:
    """What came of one family."""

    exchanges: Sequence[tuple[int, int]]
    refusals: int
    apart: float  # mean distance of all pairs, in steps

    def is_split(self, members: int) -> bool:
        groups = [{member} for member in range(members)]
        for pair in self.exchanges[-max(members, len(self.exchanges) // LATE) :]:
            joined = set().union(*(group for group in groups if group & set(pair)))
            groups = [group for group in groups if not group & joined] + [joined]
        return len(groups) > 1


def family_of(
    members: int, rounds: int, seed: int, *, correlation: float, most: float | None = None, weighing: bool = True
) -> Family:
    """Runs one family of ``members``. ``most``: deviations that are not refused, None for the nodes' rule;
    ``weighing``: who is far counts less."""
    normal, draws = np.random.default_rng(seed), Random(seed)
    begin = BEGIN * normal.normal(size=SIZE)
    replicas = [Replica(begin.copy(), interval(EVERY, draws)) for _ in range(members)]
    exchanges, refusals = list[tuple[int, int]](), 0
    for now in range(1, rounds + 1):
        for each in replicas:
            each.step = correlation * each.step + normal.normal(size=SIZE) / SIZE**0.5
            each.weights = each.weights + each.step
        waiting = [index for index, each in enumerate(replicas) if now >= each.due]
        draws.shuffle(waiting)
        while len(waiting) > 1:
            one = waiting.pop()
            for other in draws.sample(waiting, len(waiting)):
                pair = replicas[one], replicas[other]
                theirs = [each.weights for each in reversed(pair)]
                distance = float(np.linalg.norm(theirs[0] - theirs[1]))
                if sum(each.refuses(distance, most) for each in pair):  # each notes it
                    refusals += 1
                    continue
                for each, weights in zip(pair, theirs, strict=True):
                    each.average(weights, distance, weighing=weighing)
                    each.due = now + interval(EVERY, draws)
                waiting.remove(other)
                exchanges.append((one, other))
                break
    apart = [float(np.linalg.norm(a.weights - b.weights)) for a in replicas for b in replicas if a is not b]
    return Family(exchanges, refusals, statistics.fmean(apart))


RULES: Final = (
    ("as nodes do", None, True),
    ("refused beyond 3 deviations", 3.0, True),
    ("none refused, outliers count less", math.inf, True),
    ("all count in full", math.inf, False),
)
KINDS: Final = ((4, 0.0, 80), (4, 0.0, 400), (4, CORRELATION, 80), (4, CORRELATION, 400), (8, CORRELATION, 400))


def figures(families: int) -> list[Figure]:
    found = []
    for members, correlation, rounds in KINDS:
        for rule, most, weighing in RULES:
            runs = [
                family_of(members, rounds, seed, correlation=correlation, most=most, weighing=weighing)
                for seed in range(families)
            ]
            what = f"{members} replicas, correlation {correlation:g}, {rounds} rounds, {rule}"
            share = statistics.fmean(run.is_split(members) for run in runs)
            found.append(Figure(f"{what}: split", share, "of families", "lower"))
            found.append(Figure(f"{what}: apart", statistics.fmean(run.apart for run in runs), "steps", "lower"))
    return found


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--families", type=int, default=100, help="of each kind")
    options = parser.parse_args()
    report("splits", figures(options.families), as_json=options.json)


if __name__ == "__main__":
    main()
