"""Is any other setting than the rate worth a rule? wren alone on the default swarm's tasks, one setting changed.

    python -m scripts.experiments.other_settings [--rounds 150] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

The defaults are 4 completions of 32 groups at temperature 1, and one optimizer step on each batch. Every other
condition generates as many completions a round. The rate stays as it begins, so that no rule makes up for a setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.experiment import Condition, Experiment
from scripts.experiments.harness.tuned_run import Rule, TunedPlan, TunedResult
from scripts.experiments.heterogeneous import TASKS
from scripts.experiments.reports.intervals import estimate, paired
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.settings import MEASURING, ROUNDS, success_at, success_in, tuned_plan

MODEL: Final = "wren"
DEFAULTS: Final = f"{MODEL}, fixed 1"
CONDITIONS: Final = (
    Condition(DEFAULTS, "the defaults", {}),
    *(
        Condition(f"{MODEL}, {name}", what, settings)
        for name, what, settings in (
            ("2 completions", "of 64 groups", {"learner": {"completions": 2, "own_groups": 64}}),
            ("8 completions", "of 16 groups", {"learner": {"completions": 8, "own_groups": 16}}),
            ("16 completions", "of 8 groups", {"learner": {"completions": 16, "own_groups": 8}}),
            ("temperature 0.7", "of generation", {"engine": {"temperature": 0.7}}),
            ("temperature 1.4", "of generation", {"engine": {"temperature": 1.4}}),
            ("2 steps", "optimizer steps on each batch", {"objective": {"steps": 2}}),
        )
    ),
)


def plan(condition: Condition, seed: int, rounds: int) -> TunedPlan:
    return tuned_plan(condition, seed, rounds, MODEL, Rule("fixed", 1.0))


EXPERIMENT: Final = Experiment(
    name="other_settings", description=__doc__, conditions=CONDITIONS, plan=plan, rounds=ROUNDS
)
Results = Mapping[str, Sequence[TunedResult]]


def at_equal_time(results: Results, name: str, rounds: int) -> tuple[list[float], list[float]]:
    """Returns success when a run had taken as long as the defaults' run of its seed, and theirs; of a run that took
    less, at its end."""
    defaults = {run.seed: run for run in results[DEFAULTS]}
    pairs = [(run, defaults[run.seed]) for run in results[name] if run.seed in defaults]
    return (
        [success_in(run, default.cpu_at[-1]) for run, default in pairs],
        [success_at(default, rounds) for _, default in pairs],
    )


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"{MODEL} alone, {rounds} rounds of the shipped defaults on the default swarm's {len(TASKS)} tasks, but for "
        "one setting and a rate that stays. Success is sampled at temperature 1 on "
        f"{MEASURING.prompts} held-out prompts a task, {MEASURING.samples} completions each, always the same prompts. "
        "At equal processor time: when the run had taken as long as the defaults' run of the same seed, between two "
        "measurements along the straight line; at its end where it took less. ± is the 95 % interval over seeds "
        "(Student's t)."
    )
    written = EXPERIMENT.page("Settings other than the rate", intro, results, command)
    header = "condition | seeds | success at the end | at equal processor time | more than the defaults, paired by seed"
    rows = []
    for name, runs in results.items():
        equal, theirs = at_equal_time(results, name, rounds) if DEFAULTS in results else ([], [])
        rows.append(
            [
                name,
                str(len(runs)),
                estimate([success_at(run, rounds) for run in runs]).text(),
                estimate(equal).text() if equal else "",
                paired(equal, theirs).text() if equal and name != DEFAULTS else "",
            ]
        )
    written.section("Results", table(header.split(" | "), rows))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    found = []
    for name in results:
        equal, theirs = at_equal_time(results, name, rounds) if DEFAULTS in results else ([], [])
        if equal and name != DEFAULTS:
            found.append(Figure(f"{name}: success more than the defaults'", paired(equal, theirs).mean, "", "higher"))
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
