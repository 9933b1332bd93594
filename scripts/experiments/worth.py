"""What is a foreign group worth? Eight skills, four of them harder, at equal processor seconds.

    python -m scripts.experiments.worth [--rounds 120] [--seeds 3] [--only PATTERN] [--jobs 1] [--json]

Four nodes have one easy skill and one harder one each, and learn the six others from each other. What generating saves
is spent on learning, so conditions are compared at the processor seconds of ``--rounds`` updates of ``TODAY``, not at
equal updates; success between two measurements is interpolated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scripts.experiments.harness.experiment import (
    Condition,
    Experiment,
    Measuring,
    curve,
    run_plan,
)
from scripts.experiments.harness.plans import NodeHistory, RunPlan, RunResult
from scripts.experiments.harness.skills import EIGHT_SKILLS
from scripts.experiments.models import PAIRS
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table

ROUNDS: Final = 120
GROUPS: Final = 16  # own ones, two of each skill
COMPLETIONS: Final = 4
MEASURING: Final = Measuring(times=6, prompts=100, samples=0)
LACKED: Final = 0.3  # greedy success at the start, below which a node lacks a skill
BAR: Final = 0.6
LOSS: Final = 0.1


def _settings(foreign: int | str) -> dict[str, dict[str, object]]:
    return {
        "learner": {
            "own_groups": GROUPS,
            "foreign_groups": foreign,
            "share_groups": GROUPS,
            "completions": COMPLETIONS,
        }
    }


TODAY, AUTO, SELDOM = "16 groups", "auto", "seen more seldom"
CONDITIONS: Final = (
    Condition(
        TODAY, "as many foreign groups as own ones, each in four rounds at most: the defaults before", _settings(GROUPS)
    ),
    Condition(AUTO, "the defaults: right answers of peers are remembered and seen again", _settings("auto")),
    Condition(
        SELDOM,
        "as auto; right answers of peers are seen again every 5 rounds instead of 2",
        _settings("auto"),
        ablations=("seen every 5 rounds",),
    ),
    Condition(
        "auto, at the learning rate",
        "as auto; steps on remembered answers no longer than others",
        _settings("auto"),
        seeds_most=1,
        ablations=("imitation at the learning rate",),
    ),
)


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    nodes = {recipe.name: recipe.key for recipe in PAIRS}
    return run_plan("worth", condition, seed, rounds, nodes=nodes, tasks=tuple(EIGHT_SKILLS), measuring=MEASURING)


EXPERIMENT: Final = Experiment(
    name="worth",
    description=__doc__,
    conditions=CONDITIONS,
    plan=plan,
    rounds=ROUNDS,
    recipes=lambda condition: PAIRS,
)

# One run at some processor second: values between two measurements are interpolated; after the last one, it holds.

Runs = Mapping[str, Sequence[RunResult]]


def at_seconds(result: RunResult, cpu_seconds: float, value: Callable[[int], float]) -> float:
    """Returns ``value`` of the measurements' rounds when the run had taken ``cpu_seconds``."""
    rounds = result.plan.measure_at
    for index in range(1, len(rounds)):
        before, after = result.cpu_at[index - 1], result.cpu_at[index]
        if cpu_seconds <= after:
            part = (cpu_seconds - before) / (after - before)
            return (1 - part) * value(rounds[index - 1]) + part * value(rounds[index])
    return value(rounds[-1])


def lacking(result: RunResult, skill: str) -> list[NodeHistory]:
    return [node for node in result.nodes if node.measured(0).greedy[skill] < LACKED]


def success_of_lacking(result: RunResult, skill: str, cpu_seconds: float) -> float:
    """Returns the mean greedy success on ``skill`` of the nodes that lacked it."""
    nodes = lacking(result, skill)
    return at_seconds(result, cpu_seconds, lambda at: statistics.fmean(n.measured(at).greedy[skill] for n in nodes))


def mean_of_lacking(result: RunResult, cpu_seconds: float) -> float:
    return statistics.fmean(success_of_lacking(result, skill, cpu_seconds) for skill in EIGHT_SKILLS)


def changes_of_had(result: RunResult, cpu_seconds: float) -> dict[tuple[str, str], float]:
    """Returns the change of greedy success of each (node, skill) that it had."""

    def success(node: NodeHistory, skill: str) -> float:
        return at_seconds(result, cpu_seconds, lambda at: node.measured(at).greedy[skill])

    return {
        (node.name, skill): success(node, skill) - before
        for node in result.nodes
        for skill, before in node.measured(0).greedy.items()
        if before >= LACKED
    }


def mean_change_of_had(result: RunResult, cpu_seconds: float) -> float:
    return statistics.fmean(changes_of_had(result, cpu_seconds).values())


def reached(runs: Sequence[RunResult], cpu_seconds: float) -> dict[str, Estimate]:
    """Returns by skill the success of those that lacked it, over seeds."""
    return {skill: estimate([success_of_lacking(run, skill, cpu_seconds) for run in runs]) for skill in EIGHT_SKILLS}


def budget_seconds(runs: Runs) -> float | None:
    """Returns the processor seconds at which conditions are compared: what ``TODAY`` takes for all of its rounds."""
    return statistics.fmean(run.cpu_at[-1] for run in runs[TODAY]) if TODAY in runs else None


# The report


def budget_table(runs: Runs, seconds: float) -> str:
    rows = []
    for name, results in runs.items():
        until = [at_seconds(run, seconds, float) for run in results]
        changes = [change for run in results for change in changes_of_had(run, seconds).values()]
        rows.append(
            [
                name,
                f"{statistics.fmean(until):.0f}",
                estimate([mean_of_lacking(run, seconds) for run in results]).text(2),
                *(each.text(2) for each in reached(results, seconds).values()),
                estimate([mean_change_of_had(run, seconds) for run in results]).text(2),
                f"{min(changes):+.2f}",
            ]
        )
    header = ["condition", "updates by then", "mean of skills lacked", *EIGHT_SKILLS, "change, skills had", "worst"]
    return table(header, rows)


def end_table(runs: Runs) -> str:
    rows = []
    for name, results in runs.items():
        ends = [run.cpu_at[-1] for run in results]
        cells = [
            estimate([success_of_lacking(run, skill, end) for run, end in zip(results, ends, strict=True)]).text(2)
            for skill in EIGHT_SKILLS
        ]
        had = [changes_of_had(run, end) for run, end in zip(results, ends, strict=True)]
        used = statistics.fmean(n.foreign_groups_used + n.foreign_groups_replayed for r in results for n in r.nodes)
        rows.append(
            [
                name,
                estimate(ends).text(0),
                f"{used:,.0f}",
                *cells,
                estimate([statistics.fmean(each.values()) for each in had]).text(2),
                f"{min(change for each in had for change in each.values()):+.2f}",
            ]
        )
    header = ["condition", "processor seconds", "foreign groups a node", *EIGHT_SKILLS, "change, skills had", "worst"]
    return table(header, rows)


def bar_sentence(runs: Runs, seconds: float) -> str:
    said = []
    for name in (TODAY, AUTO, SELDOM):
        if name in runs:
            missed = [
                f"{skill} {each.mean:.2f}" for skill, each in reached(runs[name], seconds).items() if each.mean < BAR
            ]
            count = len(EIGHT_SKILLS) - len(missed)
            changes = [change for run in runs[name] for change in changes_of_had(run, seconds).values()]
            fell = (
                f"{sum(change < -LOSS for change in changes)} of {len(changes)} skills had fell by more than {LOSS:g}"
            )
            below = f"; below: {', '.join(missed)}" if missed else ""
            said.append(
                f"- {name}: {count} of {len(EIGHT_SKILLS)} skills at {BAR:g} or more{below}. {fell}, all nodes and "
                "seeds counted."
            )
    return "\n".join(said)


def document(runs: Runs, rounds: int, command: str) -> Document:
    intro = (
        f"Four nodes of {len(EIGHT_SKILLS)} skills, one easy and one harder one each at the start: "
        f"{'; '.join(recipe.name.replace('-', ' and ') for recipe in PAIRS)}. {GROUPS} own groups of {COMPLETIONS} an "
        "update. Success is greedy on held-out prompts, mean of the nodes that "
        f"lacked the skill (below {LACKED:g} at the start); processor seconds are those of all four nodes. "
        "± is the 95 % interval over seeds (Student's t)."
    )
    written = EXPERIMENT.page("What a foreign group is worth", intro, runs, command)
    seconds = budget_seconds(runs)
    if seconds is not None:
        heading = f"At equal processor seconds: {seconds:.0f}, those of {rounds} updates of “{TODAY}”"
        written.section(heading, budget_table(runs, seconds), bar_sentence(runs, seconds))
    written.section(f"After {rounds} updates", end_table(runs))
    shown = {name: results for name, results in runs.items() if name in (TODAY, AUTO, SELDOM)}
    if shown:
        most = min(run.cpu_at[-1] for results in shown.values() for run in results)
        grid = [most * n / 30 for n in range(31)]
        lines = [
            curve(name, grid, [[mean_of_lacking(run, s) for s in grid] for run in results])
            for name, results in shown.items()
        ]
        title = "Greedy success on the skills that were lacked, mean of eight"
        plot = line_plot(title, lines, x_label="processor seconds of four nodes", y_label="success", y_range=(0.0, 1.0))
        written.plot("", title, plot)
    return written


def main() -> None:
    EXPERIMENT.run(document)


if __name__ == "__main__":
    main()
