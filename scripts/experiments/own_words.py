"""Free text of strangers, copied or put into own words? Four skills with text before each answer, in two dialects.

    python -m scripts.experiments.own_words [--rounds 60] [--seeds 3] [--only PATTERN] [--jobs 1] [--json]

Four nodes have one skill each and learn the three others from each other, as strangers, at the shipped defaults.
Success is compared after equal rounds, and at equal processor seconds: those that "copied" takes for all of its rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.experiment import Condition, Experiment, Measuring, curve, run_plan
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.harness.skills import scratch_pad_tasks
from scripts.experiments.models import SCRATCH_PADS
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.worth import at_seconds

ROUNDS: Final = 60
MEASURING: Final = Measuring(times=12, prompts=60, samples=2)
LACKED: Final = 0.3  # success at the start, below which a node lacks a skill
COPIED, OWN_WORDS, ALONE = "copied", "own words", "alone"
CONDITIONS: Final = (
    Condition(
        COPIED,
        "right answers are learnt as they were written",
        {"objective": {"research": {"free_text": "copy"}}},
        strangers=True,
    ),
    Condition(OWN_WORDS, "the shipped defaults", {}, strangers=True),
    Condition(ALONE, "without groups of others", {"learner": {"foreign_groups": 0}}, seeds_most=1, strangers=True),
)


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    nodes = {recipe.name: recipe.key for recipe in SCRATCH_PADS}
    return run_plan(
        "own_words", condition, seed, rounds, nodes=nodes, tasks=tuple(scratch_pad_tasks()), measuring=MEASURING
    )


EXPERIMENT: Final = Experiment(
    name="own_words",
    description=__doc__,
    conditions=CONDITIONS,
    plan=plan,
    rounds=ROUNDS,
    recipes=lambda condition: SCRATCH_PADS,
)
Runs = Mapping[str, Sequence[RunResult]]


def success(result: RunResult, after: int, *, lacked: bool) -> float:
    """Returns the mean sampled success after so many rounds on the skills that each node lacked, or had."""
    return statistics.fmean(
        node.measured(after).sampled[skill]
        for node in result.nodes
        for skill, before in node.measured(0).sampled.items()
        if (before < LACKED) == lacked
    )


def reached(results: Sequence[RunResult], cpu_seconds: float, *, lacked: bool) -> Estimate:
    return estimate([at_seconds(run, cpu_seconds, lambda at: success(run, at, lacked=lacked)) for run in results])  # noqa: B023


def least(results: Sequence[RunResult]) -> Estimate:
    """Returns the least success on skills had in the course of a run."""
    return estimate([min(success(run, at, lacked=False) for at in run.plan.measure_at) for run in results])


def rows_of(runs: Runs, rounds: int) -> list[list[str]]:
    budget = statistics.fmean(run.cpu_at[-1] for run in runs[COPIED]) if COPIED in runs else None
    return [
        [
            name,
            estimate([success(run, rounds, lacked=True) for run in results]).text(2),
            reached(results, budget, lacked=True).text(2) if budget is not None else "–",
            estimate([success(run, rounds, lacked=False) for run in results]).text(2),
            least(results).text(2),
            estimate([run.cpu_at[-1] for run in results]).text(0),
        ]
        for name, results in runs.items()
    ]


def document(runs: Runs, rounds: int, command: str) -> Document:
    intro = (
        "Four nodes write free text before each answer, `get d,c,b,a so>dcba` or `d then c then b then a!>dcba`; only "
        "what follows the mark is scored. Each has one skill and lacks three. All can read a remark with the answer, "
        "as models that follow instructions can; models that cannot learn nothing from free text of strangers. Success "
        "is sampled on held-out questions; ± is the 95 % interval over seeds (Student's t)."
    )
    written = EXPERIMENT.page("Free text, copied or in own words", intro, runs, command)
    header = [
        "condition", f"skills lacked, after {rounds} updates", "at the processor seconds of “copied”",
        "skills had, at the end", "at their least", "processor seconds of four nodes",
    ]  # fmt: skip
    written.section("Success", table(header, rows_of(runs, rounds)))
    most = min(run.cpu_at[-1] for results in runs.values() for run in results)
    grid = [most * n / 30 for n in range(31)]
    lines = [
        curve(
            name,
            grid,
            [[at_seconds(run, s, lambda at: success(run, at, lacked=True)) for s in grid] for run in results],  # noqa: B023
        )
        for name, results in runs.items()
    ]
    title = "Success on the skills that were lacked"
    plot = line_plot(title, lines, x_label="processor seconds of four nodes", y_label="success", y_range=(0.0, 1.0))
    written.plot("", title, plot)
    return written


def figures(runs: Runs, rounds: int) -> list[Figure]:
    found = []
    for name, results in runs.items():
        lacked = estimate([success(run, rounds, lacked=True) for run in results])
        found.append(Figure(f"{name}, success on skills lacked", lacked.mean, "", "higher"))
        had = estimate([success(run, rounds, lacked=False) for run in results])
        found.append(Figure(f"{name}, success on skills had", had.mean, "", "higher"))
    if COPIED in runs and OWN_WORDS in runs:
        budget = statistics.fmean(run.cpu_at[-1] for run in runs[COPIED])
        ours, theirs = (reached(runs[name], budget, lacked=True).mean for name in (OWN_WORDS, COPIED))
        found.append(Figure("own words over copied, at equal processor seconds", ours / theirs, "", "higher", "≥ .95"))
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
