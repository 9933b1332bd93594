"""What the experiments share: flags, runs from conditions to results, curves over seeds.

An experiment defines its conditions and the run of each; ``Experiment.results`` runs what is missing and returns all
results, by condition, seeds in order.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final, Generic

from scripts import REPOSITORY
from scripts.bench.common.reporting import Figure, report
from scripts.experiments import models
from scripts.experiments.harness.plans import (
    ExperimentPlan,
    ExperimentResult,
    NodeHistory,
    NodePlan,
    R,
    RunPlan,
    RunResult,
    load_result,
)
from scripts.experiments.harness.runs import RunFailedError, run_all
from scripts.experiments.reports.intervals import Estimate, estimate, smoothed
from scripts.experiments.reports.plots import Line, line_plot
from scripts.experiments.reports.report_document import Document, conditions_table

INTERRUPTED: Final = 130  # the exit status that shells give for Ctrl-C
WINDOW: Final = 10  # a plotted reward is the mean of this many updates


Settings = Mapping[str, Mapping[str, object]]  # sections of a node's configuration


@dataclass(frozen=True)
class Condition:
    """``settings`` go to every node's configuration."""

    name: str
    what: str
    settings: Settings
    seeds_most: int | None = None  # of the seeds requested; None: all
    ablations: tuple[str, ...] = ()  # parts of the learner that are replaced: ``learner_ablations``
    strangers: bool = False  # nodes have to earn their influence on each other, as at a node's defaults

    def seeds(self, wanted: int) -> int:
        return wanted if self.seeds_most is None else min(wanted, self.seeds_most)


@dataclass(frozen=True)
class Measuring:
    """How success is measured: at the start and ``times`` more in the course of a run."""

    times: int
    prompts: int  # held-out prompts a task
    samples: int  # completions of each at temperature 1; 0 measures greedily alone
    trained: int = 0  # prompts a task whose questions are trained on, besides

    def rounds(self, rounds: int) -> tuple[int, ...]:
        """Returns the rounds after which to measure in the first ``rounds``, evenly spread, the last among them."""
        return tuple(sorted({*range(0, rounds, max(1, rounds // self.times)), rounds}))


def run_plan(
    experiment: str,
    condition: Condition,
    seed: int,
    rounds: int,
    *,
    nodes: Mapping[str, str],
    tasks: Sequence[str],
    measuring: Measuring,
) -> RunPlan:
    """Returns one run: ``nodes`` (name: model) under one condition."""
    settings = {name: dict(section) for name, section in condition.settings.items()}
    return RunPlan(
        experiment=experiment,
        condition=condition.name,
        seed=seed,
        rounds=rounds,
        nodes=tuple(NodePlan(name, model, settings) for name, model in nodes.items()),
        tasks=tuple(tasks),
        measure_at=measuring.rounds(rounds),
        measure_prompts=measuring.prompts,
        measure_samples=measuring.samples,
        measure_trained=measuring.trained,
        ablations=condition.ablations,
        strangers=condition.strangers,
    )


@dataclass(frozen=True)
class Experiment(Generic[R]):
    """``plan(condition, seed, rounds)`` returns one run; ``recipes`` returns the models that a condition's runs need.
    ``prepare(condition, seed)`` makes whatever else one run needs, where it is missing.
    ``description`` is the docstring of the experiment's module."""

    name: str
    description: str | None
    conditions: Sequence[Condition]
    plan: Callable[[Condition, int, int], ExperimentPlan[R]]
    rounds: int  # unless --rounds says otherwise
    recipes: Callable[[Condition], Sequence[models.SkillRecipe]] = lambda condition: ()
    prepare: Callable[[Condition, int], object] = lambda condition, seed: None

    def options(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            description=self.description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--rounds", type=int, default=self.rounds, help=f"updates a node (default {self.rounds})")
        parser.add_argument("--seeds", type=int, default=3, help="runs of each condition (default 3)")
        parser.add_argument("--only", action="append", metavar="PATTERN", help="run only the conditions that match, "
                            "as a shell matches: --only 'sapo*'")  # fmt: skip
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side")
        parser.add_argument(
            "--results", type=Path, default=REPOSITORY / ".experiments" / self.name, help="finished runs"
        )
        parser.add_argument(
            "--docs", type=Path, default=REPOSITORY / "docs" / "experiments", help="where the report goes"
        )
        parser.add_argument(
            "--finished", action="store_true", help="run nothing; report on the runs that are finished, however few"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        options = parser.parse_args()
        if min(options.rounds, options.seeds, options.jobs) < 1:
            parser.error("--rounds, --seeds and --jobs are at least 1")
        names = [condition.name for condition in self.conditions]
        for pattern in options.only or ():
            if not fnmatch.filter(names, pattern):
                parser.error(f"--only {pattern!r} matches none of: {'; '.join(names)}")
        return options

    def command(self, options: argparse.Namespace) -> str:
        finished = " --finished" if options.finished else ""
        return f"python -m scripts.experiments.{self.name} --rounds {options.rounds} --seeds {options.seeds}{finished}"

    def results(self, options: argparse.Namespace) -> dict[str, list[R]]:
        """Runs what ``options`` request and is missing; returns every condition that has all of its seeds, in order.
        With ``--finished`` it runs nothing, and returns every condition that has any.

        Ends the program on Ctrl-C and when a run fails.
        """
        root = options.results.parent / "models"
        try:
            plans = {
                c.name: [self.plan(c, seed, options.rounds) for seed in range(c.seeds(options.seeds))]
                for c in self.conditions
            }
            wanted = [n for n in plans if not options.only or any(fnmatch.fnmatchcase(n, p) for p in options.only)]
            wanted = [] if options.finished else wanted
            needed = [recipe for c in self.conditions if c.name in wanted for recipe in self.recipes(c)]
            for recipe in dict.fromkeys(needed):
                models.ensure(recipe, root)
            for condition in (c for c in self.conditions if c.name in wanted):
                for seed in range(condition.seeds(options.seeds)):
                    self.prepare(condition, seed)
            # Seed by seed, so that an interrupted experiment has compared all conditions.
            in_order = [p for of_seed in zip_longest(*(plans[n] for n in wanted)) for p in of_seed if p is not None]
            run_all(in_order, options.results, root, jobs=options.jobs)
        except KeyboardInterrupt:
            print("interrupted; the same command continues from the finished runs", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        except RunFailedError as error:
            raise SystemExit(str(error)) from None
        found = {name: [load_result(options.results, plan) for plan in of_name] for name, of_name in plans.items()}
        whole = {name: [r for r in results if r is not None] for name, results in found.items()}
        least = {name: 1 if options.finished else len(of_name) for name, of_name in plans.items()}
        return {name: results for name, results in whole.items() if len(results) >= least[name]}

    def page(
        self, title: str, intro: str, results: Mapping[str, Sequence[ExperimentResult]], command: str, further: str = ""
    ) -> Document:
        """Returns the report's beginning: which conditions were run, and the processor time of their runs."""
        written = Document(self.name, title, intro, command)
        counts = {name: len(runs) for name, runs in results.items()}
        written.section("Conditions", conditions_table({c.name: c.what for c in self.conditions}, counts))
        written.parts.append(seconds_a_run(results) + further)
        return written

    def run(
        self,
        document: Callable[[dict[str, list[R]], int, str], Document],
        figures: Callable[[dict[str, list[R]], int], Sequence[Figure]] = lambda results, rounds: (),
    ) -> None:
        """The whole command: runs what is missing, writes the page, and prints the ``figures`` that a record in
        docs/figures keeps; both are given the results and the rounds."""
        options = self.options()
        results = self.results(options)
        if not results:
            raise SystemExit("there is nothing to report on: no condition has the runs that were asked for")
        path = document(results, options.rounds, self.command(options)).write(options.docs)
        print(f"written: {path}", file=sys.stderr)
        found = [figure for figure in figures(results, options.rounds) if math.isfinite(figure.value)]  # of many seeds
        if found or options.json:
            report(f"experiments/{self.name}", found, as_json=options.json)


def over_nodes(result: RunResult, value: Callable[[NodeHistory], float]) -> float:
    """Returns the mean of ``value`` over the nodes of one run."""
    return statistics.fmean(value(node) for node in result.nodes)


def over_seeds(results: Sequence[RunResult], value: Callable[[RunResult], float]) -> Estimate:
    return estimate([value(result) for result in results])


def by_seed(
    results: Mapping[str, Sequence[R]], one: str, other: str, value: Callable[[R], float]
) -> dict[int, tuple[float, float]]:
    """Returns ``value`` under two conditions, for each seed that both have."""
    ours, theirs = ({run.seed: value(run) for run in results.get(name, ())} for name in (one, other))
    return {seed: (ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())}


def difference(
    results: Mapping[str, Sequence[R]], one: str, other: str, value: Callable[[R], float]
) -> Estimate | None:
    """Returns ``value`` under ``one`` less that under ``other``, paired by seed; None where no seed has both."""
    both = by_seed(results, one, other, value)
    return estimate([ours - theirs for ours, theirs in both.values()]) if both else None


def per_cent_more(
    results: Mapping[str, Sequence[R]], one: str, other: str, value: Callable[[R], float]
) -> Estimate | None:
    """Returns by how many per cent ``value`` under ``one`` exceeds that under ``other``, paired by seed; None where no
    seed has both."""
    both = by_seed(results, one, other, value)
    return estimate([100 * (ours / theirs - 1) for ours, theirs in both.values()]) if both else None


def verdict(found: Estimate, at_most: float) -> str:
    """Returns whether the mean, and whether its whole interval, meets a bar of at most ``at_most``."""
    if found.mean > at_most:
        return "missed"
    return "met by the whole interval" if found.count > 1 and found.high <= at_most else "met by the mean"


def mean_rewards(result: RunResult) -> list[float]:
    """Returns the mean sampled reward of all nodes, round by round."""
    return [statistics.fmean(rewards) for rewards in zip(*(node.reward for node in result.nodes), strict=True)]


def reward_plot(
    title: str, results: Mapping[str, Sequence[RunResult]], rounds: int, rewards: Callable[[RunResult], Sequence[float]]
) -> str:
    """Returns a plot of rewards over the first ``rounds`` updates, a line for each condition."""
    lines = [
        curve(name, range(1, rounds + 1), [smoothed(rewards(run)[:rounds], WINDOW) for run in runs])
        for name, runs in results.items()
    ]
    return line_plot(title, lines, x_label="updates", y_label="reward")


def curve(name: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Line:
    """Returns the mean over ``runs``, equally long, with the interval at each point if there is more than one run."""
    points = [estimate(values) for values in zip(*runs, strict=True)]
    many = len(runs) > 1
    low, high = ([getattr(p, side) for p in points] if many else [] for side in ("low", "high"))
    return Line(name, list(x), [p.mean for p in points], low, high)


def seconds_a_run(results: Mapping[str, Sequence[ExperimentResult]]) -> str:
    """Returns, for the report, the processor time of the runs."""
    seconds = [result.cpu_seconds for of_name in results.values() for result in of_name]
    total_minutes = sum(seconds) / 60
    return (
        f"{len(seconds)} runs of {min(seconds):.0f} to {max(seconds):.0f} processor seconds each, "
        f"{total_minutes:.0f} minutes in all."
    )
