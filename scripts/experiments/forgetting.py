"""Why does a node forget what it could, once its peers are gone? The three built-in models, together and then alone.

    python -m scripts.experiments.forgetting [--rounds 300] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

wren, robin and finch learn together for ``TOGETHER`` rounds; then nothing that one sends reaches another, and each
continues alone for ``--rounds`` more. Measured is the success on held-out prompts of every task: before, when they
part, and every hundred rounds after. "as it was" is the learner without what was changed for it: AdamW's steps are as
long whatever the batch says, and no own answer is seen again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import structs

from scripts.experiments.harness.experiment import (
    Condition,
    Experiment,
    Measuring,
    curve,
    difference,
    over_seeds,
    run_plan,
)
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.heterogeneous import MODELS, TASKS
from scripts.experiments.reports.intervals import estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.reports.success import (
    LEAST,
    at_parting,
    end_of,
    falls,
    greatest_fall,
    mean_change,
    mean_reward,
    mean_success,
)

ROUNDS: Final = 300  # alone
TOGETHER: Final = 100
GROUPS: Final = 12  # own, and at most as many foreign ones; two for each task
COMPLETIONS: Final = 4
BAR: Final = 0.1
MEASURING: Final = Measuring(times=3, prompts=80, samples=4)  # times: after they part

DEFAULTS, SELDOM, SHORTER = "defaults", "seen more seldom", "shorter steps"
FIXED, BEFORE = f"{GROUPS} foreign groups", "as it was"
AS_IT_WAS: Final = ("whole steps", "nothing seen again")


def _settings(foreign_groups: object) -> dict[str, dict[str, object]]:
    sizes = {"own_groups": GROUPS, "completions": COMPLETIONS, "share_groups": GROUPS}
    return {"learner": {**sizes, "foreign_groups": foreign_groups}}


CONDITIONS: Final = (
    Condition(
        DEFAULTS,
        "with peers, then alone; steps scaled by the signal, right answers seen again, own and others'",
        _settings("auto"),
    ),
    Condition(
        SELDOM,
        "the same, peers' right answers seen again every 5 rounds instead of 2",
        _settings("auto"),
        ablations=("seen every 5 rounds",),
    ),
    Condition(
        SHORTER,
        "the same, at the rate whose steps move the policy a quarter as far (KL)",
        _settings("auto"),
        ablations=("a quarter of the movement",),
    ),
    Condition(FIXED, "the same, others' right answers not seen again", _settings(GROUPS)),
    Condition(BEFORE, "the same with whole steps, nothing seen again", _settings(GROUPS), ablations=AS_IT_WAS),
)


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    nodes = {name: f"builtin:{name}" for name in MODELS}
    made = run_plan("forgetting", condition, seed, TOGETHER + rounds, nodes=nodes, tasks=TASKS, measuring=MEASURING)
    after = {TOGETHER + n for n in MEASURING.rounds(rounds)}
    return structs.replace(made, parted_after=TOGETHER, measure_at=(0, *sorted(after)))


EXPERIMENT: Final = Experiment(
    name="forgetting",
    description=__doc__,
    conditions=CONDITIONS,
    plan=plan,
    rounds=ROUNDS,
)
Results = Mapping[str, Sequence[RunResult]]

# The report


def parted_table(results: Results) -> str:
    header = (
        "condition | success at the start | when parted | at the end | skills when parted, all runs "
        f"| of them fell by more than {BAR:g} alone | mean change alone | greatest fall alone | with peers "
        "| mean reward, with peers | alone"
    )
    rows = []
    for name, runs in results.items():
        every = [fall for run in runs for fall in falls(run, at_parting(run), end_of(run)).values()]
        most, where = greatest_fall(runs, at_parting)
        before, where_before = greatest_fall(runs, lambda run: 0, at_parting)
        rows.append(
            [
                name,
                over_seeds(runs, lambda r: mean_success(r, 0)).text(),
                over_seeds(runs, lambda r: mean_success(r, at_parting(r))).text(),
                over_seeds(runs, lambda r: mean_success(r, end_of(r))).text(),
                str(len(every)),
                str(sum(fall > BAR for fall in every)),
                over_seeds(runs, lambda r: mean_change(r, at_parting(r))).text(),
                f"{most:.3f} ({where})",
                f"{before:.3f} ({where_before})",
                over_seeds(runs, lambda r: mean_reward(r, slice(0, at_parting(r)))).text(),
                over_seeds(runs, lambda r: mean_reward(r, slice(at_parting(r), None))).text(),
            ]
        )
    return table(header.split(" | "), rows)


def skills_table(runs: Sequence[RunResult]) -> str:
    """Returns each model's success on each task: at the start, when parted, at the end, and the change since."""
    rows = []
    for index, node in enumerate(runs[0].nodes):
        for task in TASKS:

            def of(run: RunResult, at: int, *, index: int = index, task: str = task) -> float:
                return run.nodes[index].measured(at).sampled[task]

            changes = [of(run, end_of(run)) - of(run, at_parting(run)) for run in runs]
            cells = [estimate([of(run, at(run)) for run in runs]).text(2) for at in (lambda run: 0, at_parting, end_of)]
            rows.append([node.name, task, *cells, estimate(changes).text(2), f"{min(changes):+.2f}"])
    return table(["model", "task", "start", "when parted", "end", "change alone", "of the worst seed"], rows)


def sentences(results: Results) -> str:
    said = []
    named: list[tuple[str, Callable[[RunResult], float]]] = [
        ("mean reward of the rounds with peers", lambda r: mean_reward(r, slice(0, at_parting(r)))),
        ("success when parted", lambda r: mean_success(r, at_parting(r))),
        ("success at the end", lambda r: mean_success(r, end_of(r))),
    ]
    for words, value in named:
        more = difference(results, DEFAULTS, BEFORE, value)
        if more is not None:
            said.append(f"- {words}, defaults less as it was, paired by seed ({more.count}): {more.text()}.")
    return "\n".join(said)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"{', '.join(MODELS[:-1])} and {MODELS[-1]} on the default swarm's {len(TASKS)} tasks: {TOGETHER} rounds with "
        f"each other, then {rounds} alone. {GROUPS} own groups of {COMPLETIONS} an update and the same number shared, "
        f"default learning rates. Success is sampled at temperature 1 on {MEASURING.prompts} held-out prompts a task, "
        f"{MEASURING.samples} completions each, always the same prompts; a task counts as a skill from {LEAST:g} on. "
        "± is the 95 % interval over seeds (Student's t)."
    )
    written = EXPERIMENT.page("Forgetting: what a node keeps when its peers are gone", intro, results, command)
    written.section(f"{TOGETHER} rounds with peers, {rounds} alone", parted_table(results), sentences(results))
    for name, runs in results.items():
        written.section(f"Each skill: {name}", skills_table(runs))
    lines = [
        curve(name, at, [[mean_success(run, n) for n in at] for run in runs])
        for name, runs in results.items()
        for at in [runs[0].plan.measure_at]
    ]
    if lines:
        title = f"Success, mean of all models and tasks; alone from round {TOGETHER} on"
        written.plot("", title, line_plot(title, lines, x_label="rounds", y_label="success"))
    return written


def main() -> None:
    EXPERIMENT.run(document)


if __name__ == "__main__":
    main()
