"""How often the two judges of own success accuse honest peers, and how soon they find a fall, simulated.

The watch (``node.learner.influence.watch``) compares rounds, averaging's trial (``node.averaging.trial``) an outer step
with what was before it. Here own groups are drawn: of each prompt a success p' ~ Beta(κp, κ(1 − p)) around its task's
p, and of p' as many completions as a group has. p stays, rises, walks at random (reflected at 0 and 1; all tasks
together, or each by itself), or falls. Nobody attacks but where a fall is named.

    python -m scripts.attacks.false_alarms              # five minutes: each rate, and each delay
    python -m scripts.attacks.false_alarms --averaging-days 10  # only: what averaging's guard does to four honest peers
    python -m scripts.attacks.false_alarms --runs 4000  # 1.6 million rounds a rate: nine days at two a second
    python -m scripts.attacks.false_alarms --json
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.averaging.guard import AveragingGuard, OwnGroup, StepTrial
from node.averaging.trial import REMEMBERED, TRIAL_ROUNDS
from node.learner.influence.watch import FIRST_WALK, HARM, HARM_OF_NEWCOMERS, ROUNDS, compared
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.averaging.norm_history import FamilyPast

Array = NDArray[np.float64]
Success = Callable[[np.random.Generator, Array, int], Array]  # (draws, p of (runs, tasks), round) -> the next p

RUNS: Final = 1000  # of 400 rounds; as many outer steps
LENGTH: Final = 400  # rounds
JOINING: Final = slice(60, 120)  # rounds in which a peer that joined at 60 is a newcomer, and 50 more
BEFORE_FALL: Final = 100  # rounds
AFTER_FALL: Final = 40


@dataclass(frozen=True)
class Node:
    """What a learner generates in a round."""

    tasks: int = 6
    groups: int = 16
    completions: int = 8
    kappa: float = 2.0  # 2: many prompts nearly always or never succeed; 50: prompts are alike

    def __str__(self) -> str:
        alike = ", prompts alike" if self.kappa > 10 else ""
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        return f"{tasks}, {self.groups} groups of {self.completions}{alike}"


@dataclass(frozen=True)
class Case:
    name: str
    success: float  # p in the first round
    moves: Success
    bar: float  # P(a false alarm in 400 rounds) at most


def stays(draws: np.random.Generator, p: Array, number: int) -> Array:
    return p


def walks(step: float, *, together: bool) -> Success:
    def moved(draws: np.random.Generator, p: Array, number: int) -> Array:
        p = np.abs(p + draws.normal(0.0, step, (len(p), 1) if together else p.shape))
        return 1.0 - np.abs(1.0 - p)

    return moved


def rises(draws: np.random.Generator, p: Array, number: int) -> Array:
    return np.minimum(0.9, p + 0.005)


def own_groups(draws: np.random.Generator, node: Node, p: Array, number: int) -> Iterator[tuple[int, Array]]:
    """Yields the groups of a round, tasks in turn: the task, and the mean reward in each run."""
    for group in range(number * node.groups, (number + 1) * node.groups):
        of_task = np.clip(p[:, group % node.tasks], 1e-3, 1 - 1e-3)
        of_prompt = draws.beta(node.kappa * of_task, node.kappa * (1 - of_task))
        yield group % node.tasks, draws.binomial(node.completions, of_prompt) / node.completions


def scores(node: Node, start: float, moves: Success, *, runs: int, rounds: int, seed: int) -> Array:
    """Returns the watch's score after each round of each run, (rounds, runs). No alarm is acted on."""
    draws = np.random.default_rng(seed)
    history = np.zeros((3, runs, node.tasks, ROUNDS))
    walk, p, found = np.full(runs, FIRST_WALK**2), np.full((runs, node.tasks), start), []
    for number in range(rounds):
        p = moves(draws, p, number)
        history[..., :-1] = history[..., 1:]
        history[..., -1] = 0.0
        for task, means in own_groups(draws, node, p, number):
            history[:, :, task, -1] += np.stack([np.ones_like(means), means, means**2])
        each, walk = compared(history[0], history[1], history[2], walk)
        found.append(each.max(axis=-1))
    return np.array(found)


def share_of_steps_lost(node: Node, start: float, moves: Success, *, steps: int, seed: int) -> float:
    """Returns the share of honest outer steps that averaging's guard takes back, with a partner's sum carried along."""
    draws = np.random.default_rng(seed)
    guard, p, lost, number, taken = AveragingGuard(), np.full((1, node.tasks), start), 0, 0, 0
    while taken < steps:
        if number % (TRIAL_ROUNDS + 1) == TRIAL_ROUNDS:
            guard.began(StepTrial("honest", b"", number, number + 1, {}, FamilyPast()))
            taken += 1
        number += 1
        p = moves(draws, p, number)
        means = [(f"task-{task}", float(mean[0])) for task, mean in own_groups(draws, node, p, number)]
        if guard.observe([OwnGroup(task, number, [mean]) for task, mean in means]) is not None:
            lost += 1
            guard.failed(number + 1)
    return lost / steps


@dataclass(frozen=True)
class AveragingDays:
    """What averaging's guard did to honest partners, who changed nothing."""

    steps: int
    accusations: int
    shut_out: float  # share of the partners' time
    missed: int  # outer steps for which every partner was shut out


def averaging_days(node: Node, walk: tuple[float, float], days: float, *, rounds_a_second: float) -> AveragingDays:
    """``walk``: of all tasks together, and of each by itself, a round. Before each outer step the rounds are drawn that
    the guard remembers, and ``TRIAL_ROUNDS`` after it; success walks through those between."""
    draws, guard, p = np.random.default_rng(0), AveragingGuard(), np.full(node.tasks, AVERAGING_SUCCESS)
    names = [f"task-{task}" for task in range(node.tasks)]
    remembered = -(-REMEMBERED * node.tasks // node.groups)
    taken = accusations = missed = shut_out = 0
    due = int(days * 86400 * rounds_a_second / AVERAGING_ROUNDS)

    def rounds(count: int, version: int) -> list[OwnGroup]:
        tasks = np.arange(count * node.groups) % node.tasks
        of_prompt = draws.beta(node.kappa * p[tasks], node.kappa * (1 - p[tasks]))
        means = draws.binomial(node.completions, of_prompt) / node.completions
        return [OwnGroup(names[task], version, (mean,)) for task, mean in zip(tasks, means.tolist(), strict=True)]

    def walked(count: int) -> Array:
        steps = draws.normal(0.0, walk[0], 1) + draws.normal(0.0, walk[1], node.tasks)
        moved = np.abs(p + np.sqrt(count) * steps)
        reflected: Array = np.clip(1.0 - np.abs(1.0 - moved), 1e-3, 1 - 1e-3)
        return reflected

    for step in range(1, due + 1):
        version = step * AVERAGING_ROUNDS
        p = walked(AVERAGING_ROUNDS - TRIAL_ROUNDS)
        guard.observe(rounds(remembered, version - 1))
        avoided = guard.known(version).avoided
        shut_out += len(avoided)
        there = [partner for partner in AVERAGING_PARTNERS if partner not in avoided]
        if not there:
            missed += 1
            continue
        taken += 1
        guard.began(StepTrial(str(draws.choice(there)), b"", version, version, {}, FamilyPast()))
        for number in range(version, version + TRIAL_ROUNDS):
            p = walked(1)
            if guard.observe(rounds(1, number)) is not None:
                guard.failed(number + 1)
                accusations += 1
                break
    return AveragingDays(taken, accusations, shut_out / due / len(AVERAGING_PARTNERS), missed)


def averaging_figures(days: float) -> list[Figure]:
    figures = []
    for rounds_a_second in AVERAGING_SPEEDS:
        for name, walk in AVERAGING_WALKS:
            for node in AVERAGING_NODES:
                found = averaging_days(node, walk, days, rounds_a_second=rounds_a_second)
                print(f"{rounds_a_second:g} rounds/s, {name}, {node}: {found}", file=sys.stderr, flush=True)
                title = f"{rounds_a_second:g} rounds a second, success {name}, {node}: "
                figures += [
                    Figure(title + "honest outer steps", found.steps, "", "higher"),
                    Figure(title + "of these taken for harm", found.accusations, "", "lower"),
                    Figure(title + "partners shut out", 100 * found.shut_out, "% of time", "lower", "≤ 5"),
                    Figure(title + "outer steps missed", found.missed, "", "lower", "0"),
                ]
    return figures


AVERAGING_ROUNDS: Final = 50  # ``averaging.every_rounds``
AVERAGING_PARTNERS: Final = ("ann", "bob", "eve", "joe")
AVERAGING_SUCCESS: Final = 0.5
AVERAGING_SPEEDS: Final = (2.0, 0.1)  # rounds a second: the built-in models, and larger ones
AVERAGING_WALKS: Final = (("stays", (0.0, 0.0)), ("walks as real learners' does", (0.005, 0.01)))
NODES: Final = (
    Node(),
    Node(tasks=1),
    Node(tasks=20),
    Node(groups=32),
    Node(completions=4, kappa=50.0),
    Node(tasks=1, completions=4),
)
AVERAGING_NODES: Final = (Node(groups=32, completions=4), Node(tasks=1, groups=32, completions=4))
CASES: Final = (
    *(Case(f"success stays {p}", p, stays, 0.01) for p in (0.05, 0.2, 0.5, 0.9)),
    Case("rises from .1 to .9", 0.1, rises, 0.01),
    Case("walks by .01 a round, tasks together", 0.4, walks(0.01, together=True), 0.01),
    Case("walks by .01 a round, each task", 0.4, walks(0.01, together=False), 0.01),
    Case("walks by .02 a round, tasks together", 0.4, walks(0.02, together=True), 0.1),
)
FALLS: Final[tuple[tuple[str, float, Callable[[float, int], float]], ...]] = (
    ("falls by half at once", 0.5, lambda p, after: p / 2),
    ("falls by a quarter at once", 0.5, lambda p, after: 0.75 * p),
    ("falls by a quarter at once", 0.7, lambda p, after: 0.75 * p),
    ("falls by half at once", 0.2, lambda p, after: p / 2),
    ("falls by .02 a round", 0.5, lambda p, after: max(0.0, p - 0.02 * after)),
    ("falls by .02 a round", 0.2, lambda p, after: max(0.0, p - 0.02 * after)),
)


@dataclass(frozen=True)
class Rates:
    """False alarms of one node in one case."""

    in_a_million: float  # rounds, begun alarms
    share_of_runs: float  # of ``LENGTH`` rounds, that have one
    after_joining: float  # share of runs that accuse newcomers in ``JOINING``
    steps_lost: float  # share of averaging's honest steps


def rates(node: Node, case: Case, *, runs: int, steps: int, seed: int) -> Rates:
    found = scores(node, case.success, case.moves, runs=runs, rounds=LENGTH, seed=seed)
    above = found >= HARM
    begun = np.sum(above[1:] & ~above[:-1]) + np.sum(above[0])
    return Rates(
        in_a_million=float(1e6 * begun / found.size),
        share_of_runs=float(np.mean(above.any(0))),
        after_joining=float(np.mean((found[JOINING] >= HARM_OF_NEWCOMERS).any(0))),
        steps_lost=share_of_steps_lost(node, case.success, case.moves, steps=steps, seed=seed),
    )


def delays(node: Node, start: float, fallen: Callable[[float, int], float], bar: float, *, runs: int) -> Array:
    """Returns for each run how many rounds after a fall the score comes to ``bar``; infinity: not in ``AFTER_FALL``."""

    def moves(draws: np.random.Generator, p: Array, number: int) -> Array:
        return np.full_like(p, start if number < BEFORE_FALL else fallen(start, number - BEFORE_FALL + 1))

    found = scores(node, start, moves, runs=runs, rounds=BEFORE_FALL + AFTER_FALL, seed=1)[BEFORE_FALL:] >= bar
    return np.where(found.any(0), found.argmax(0) + 1, np.inf)


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of {LENGTH} rounds for each rate")
    parser.add_argument("--averaging-days", type=float, metavar="DAYS", help="measure averaging's guard alone")
    arguments = parser.parse_args()
    if arguments.averaging_days:
        report("false alarms", averaging_figures(arguments.averaging_days), as_json=arguments.json)
        return
    figures = []
    for case in CASES:
        of_nodes = []
        for node in NODES:
            of_nodes.append(rates(node, case, runs=arguments.runs, steps=arguments.runs, seed=0))
            print(f"{case.name}; {node}: {of_nodes[-1]}", file=sys.stderr)
        usual, worst = of_nodes[0], max(of_nodes, key=lambda each: each.in_a_million)
        joining, lost = max(each.after_joining for each in of_nodes), max(each.steps_lost for each in of_nodes)
        bar = f"≤ {case.bar}"
        figures += [
            Figure(f"{case.name}: false alarms in a million rounds, {NODES[0]}", usual.in_a_million, "", "lower"),
            Figure(f"{case.name}: the same, worst of {len(NODES)} kinds of node", worst.in_a_million, "", "lower"),
            Figure(f"{case.name}: in {LENGTH} rounds, worst", worst.share_of_runs, "of runs", "lower", bar),
            Figure(f"{case.name}: newcomers, in 60 rounds after one joined, worst", joining, "of runs", "lower", bar),
            Figure(f"{case.name}: averaging's honest steps lost, worst", lost, "of steps", "lower", bar),
        ]
    for name, start, fallen in FALLS:
        for bar_, whose in ((HARM, ""), (HARM_OF_NEWCOMERS, ", with newcomers")):
            took = delays(NODES[0], start, fallen, bar_, runs=max(1, arguments.runs // 4))
            title = f"success {start} {name}{whose}"
            seen = float(np.mean(np.isfinite(took)))
            figures.append(Figure(f"{title}: seen within {AFTER_FALL} rounds", seen, "of runs", "higher"))
            if seen > 0.5:
                figures.append(Figure(f"{title}: median", float(np.median(took)), "rounds", "lower"))
    report("false alarms", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
