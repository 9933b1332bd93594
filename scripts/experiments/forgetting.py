"""Why does a node forget what it could, once its peers are gone? The three built-in models, together and then alone.

    python -m scripts.experiments.forgetting [--rounds 300] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

wren, robin and finch learn together for ``TOGETHER`` rounds; then nothing that one sends reaches another, and each
continues alone for ``--rounds`` more. Measured is the success on held-out prompts of every task: before, when they
part, and every hundred rounds after. "as it was" is the learner without what was changed for it: AdamW's steps are as
long whatever the batch says, and no own answer is seen again.

The causes are looked for in the cheapest run that shows the loss: one model alone from the start, for
``ABLATION_ROUNDS`` rounds, one factor changed at a time from "as it was", on the same seeds.
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
    over_seeds,
    run_plan,
    seconds_a_run,
)
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.heterogeneous import MODELS, TASKS
from scripts.experiments.reports.falls import (
    LEAST,
    at_parting,
    end_of,
    falls,
    greatest_fall,
    mean_change,
    mean_reward,
)
from scripts.experiments.reports.intervals import Estimate, estimate, paired
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, Figure, conditions_table, table
from scripts.experiments.reports.success import mean_success

ROUNDS: Final = 300  # alone
TOGETHER: Final = 100
GROUPS: Final = 12  # own, and at most as many foreign ones; two for each task
COMPLETIONS: Final = 4
BAR: Final = 0.1
MEASURING: Final = Measuring(times=3, prompts=80, samples=4)  # times: after they part
ABLATED: Final = "finch"
ABLATION_ROUNDS: Final = 80
ABLATION_MEASURING: Final = Measuring(times=1, prompts=60, samples=2)

DEFAULTS, FIXED, BEFORE = "defaults", f"{GROUPS} foreign groups", "as it was"
AS_IT_WAS: Final = ("whole steps", "nothing seen again")
# name: (what it is, learner.foreign_groups, parts of the learner replaced)
PARTED: Final[Mapping[str, tuple[str, object, tuple[str, ...]]]] = {
    DEFAULTS: (
        "with peers, then alone; steps scaled by the signal, right answers seen again, own and others'",
        "auto",
        (),
    ),
    FIXED: ("the same, others' right answers not seen again", GROUPS, ()),
    BEFORE: ("the same with whole steps, nothing seen again", GROUPS, AS_IT_WAS),
}
LEARNER: Final[Mapping[str, object]] = {"own_groups": GROUPS, "completions": COMPLETIONS}
ALONE: Final = "alone: "


def _learner(**changes: object) -> dict[str, dict[str, object]]:
    return {"learner": {**LEARNER, "foreign_groups": 0, "share_groups": 0, **changes}}


# name: (what it is, settings, parts of the learner replaced)
CAUSES: Final[Mapping[str, tuple[str, Mapping[str, Mapping[str, object]], tuple[str, ...]]]] = {
    BEFORE: ("the base of the rows below", _learner(), AS_IT_WAS),
    DEFAULTS: ("steps scaled by the signal, right answers seen again", _learner(), ()),
    "steps scaled": ("steps scaled by the signal, nothing seen again", _learner(), ("nothing seen again",)),
    "steps scaled by the root": (
        "by its root, nothing seen again",
        _learner(),
        ("root of the share", "nothing seen again"),
    ),
    "seen again": ("whole steps, right answers seen again", _learner(), ("whole steps",)),
    "rate 1e-4": ("a third of the learning rate", _learner(learning_rate=1e-4), AS_IT_WAS),
    "rate 5e-5": ("a sixth of it", _learner(learning_rate=5e-5), AS_IT_WAS),
    "no negatives": ("own negative advantages are 0", _learner(), (*AS_IT_WAS, "no negatives")),
    "negatives at 0.3": ("own negative advantages times 0.3", _learner(), (*AS_IT_WAS, "negatives at 0.3")),
    "advantages not normalised": (
        "A = R − mean R: groups with rare rewards weigh less",
        {**_learner(), "objective": {"research": {"advantage": "mean"}}},
        AS_IT_WAS,
    ),
    "short second moment": ("AdamW's β₂ .99 instead of .999", _learner(), (*AS_IT_WAS, "short second moment")),
    "twice the prompts": ("24 prompts an update instead of 12", _learner(own_groups=2 * GROUPS), AS_IT_WAS),
    "groups of equal rewards replaced": (
        "up to four times as many prompts drawn for them",
        _learner(resample=4),
        AS_IT_WAS,
    ),
    "KL to the start": (
        "kl_weight 0.05, to the model as it was loaded",
        {**_learner(), "objective": {"kl_weight": 0.05}},
        AS_IT_WAS,
    ),
}


def conditions() -> list[Condition]:
    parted = [
        Condition(name, what, {"learner": {**LEARNER, "foreign_groups": foreign, "share_groups": GROUPS}})
        for name, (what, foreign, _) in PARTED.items()
    ]
    return parted + [Condition(ALONE + name, what, settings) for name, (what, settings, _) in CAUSES.items()]


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    if condition.name in PARTED:
        nodes = {name: f"builtin:{name}" for name in MODELS}
        made = run_plan("forgetting", condition, seed, TOGETHER + rounds, nodes=nodes, tasks=TASKS, measuring=MEASURING)
        after = {TOGETHER + n for n in MEASURING.rounds(rounds)}
        replaced = PARTED[condition.name][2]
        return structs.replace(made, parted_after=TOGETHER, measure_at=(0, *sorted(after)), ablations=replaced)
    nodes = {ABLATED: f"builtin:{ABLATED}"}
    made = run_plan(
        "forgetting", condition, seed, ABLATION_ROUNDS, nodes=nodes, tasks=TASKS, measuring=ABLATION_MEASURING
    )
    return structs.replace(made, ablations=CAUSES[condition.name.removeprefix(ALONE)][2])


EXPERIMENT: Final = Experiment(
    name="forgetting",
    description=(__doc__ or "").partition("\n")[0],
    conditions=conditions(),
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
    for name in PARTED:
        if name not in results:
            continue
        runs = results[name]
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


def causes_table(results: Results) -> str:
    def end(run: RunResult) -> float:
        return mean_success(run, end_of(run))

    def change(run: RunResult) -> float:
        return mean_change(run, 0)

    rows = []
    for name in CAUSES:
        runs = results.get(ALONE + name)
        if not runs:
            continue
        more = [difference(results, ALONE + name, ALONE + BEFORE, of) for of in (change, end)]
        most, where = greatest_fall(runs, lambda run: 0)
        rows.append(
            [
                name,
                over_seeds(runs, change).text(),
                more[0].text() if more[0] is not None and name != BEFORE else "",
                f"{most:.2f} ({where.partition(', ')[2]})",
                over_seeds(runs, end).text(),
                more[1].text() if more[1] is not None and name != BEFORE else "",
                over_seeds(runs, lambda r: mean_reward(r, slice(None))).text(),
            ]
        )
    header = f"condition | change of the skills had | less {BEFORE} | greatest fall | success at the end, all tasks "
    return table(f"{header}| less {BEFORE} | mean reward".split(" | "), rows)


def difference(results: Results, one: str, other: str, value: Callable[[RunResult], float]) -> Estimate | None:
    """Returns ``value`` under ``one`` less that under ``other``, paired by seed; None where no seed has both."""
    theirs = {run.seed: run for run in results.get(other, [])}
    both = [(run, theirs[run.seed]) for run in results.get(one, []) if run.seed in theirs]
    return paired([value(a) for a, _ in both], [value(b) for _, b in both]) if both else None


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
    written = Document("forgetting", "Forgetting: what a node keeps when its peers are gone", intro, command)
    counts = {name: len(runs) for name, runs in results.items()}
    shown = {c.name: c.what for c in EXPERIMENT.conditions if c.name in counts}
    written.section("Conditions", conditions_table(shown, counts))
    written.parts.append(seconds_a_run(results))
    written.section(f"{TOGETHER} rounds with peers, {rounds} alone", parted_table(results), sentences(results))
    for name in PARTED:
        if name in results:
            written.section(f"Each skill: {name}", skills_table(results[name]))
    if any(ALONE + name in results for name in CAUSES):
        what = (
            f"{ABLATED} alone from the start, {ABLATION_ROUNDS} rounds; {ABLATION_MEASURING.prompts} prompts a task, "
            f"{ABLATION_MEASURING.samples} completions each. The change is of the skills that it had at the start."
        )
        written.section("Causes, one factor at a time", what, causes_table(results))
    lines = [
        curve(name, at, [[mean_success(run, n) for n in at] for run in results[name]])
        for name in PARTED
        if name in results
        for at in [results[name][0].plan.measure_at]
    ]
    if lines:
        title = f"Success, mean of all models and tasks; alone from round {TOGETHER} on"
        written.plot("", title, line_plot(title, lines, x_label="rounds", y_label="success"))
    return written


def figures(results: Results) -> list[Figure]:
    found: list[Figure] = []
    if DEFAULTS in results:
        most, where = greatest_fall(results[DEFAULTS], at_parting)
        found.append(Figure(f"greatest fall of any skill alone ({where})", most, "success", "lower", f"≤ {BAR:g}"))
        most, where = greatest_fall(results[DEFAULTS], lambda run: 0, at_parting)
        found.append(Figure(f"greatest fall of any skill with peers ({where})", most, "success", "lower"))
        most, where = greatest_fall(results[DEFAULTS], lambda run: 0)
        found.append(Figure(f"greatest fall of any skill since the start ({where})", most, "success", "lower"))
    if BEFORE in results:
        most, where = greatest_fall(results[BEFORE], at_parting)
        found.append(Figure(f"as it was: greatest fall of any skill alone ({where})", most, "success", "lower"))
    more = difference(results, DEFAULTS, BEFORE, lambda r: mean_reward(r, slice(0, at_parting(r))))
    if more is not None:
        found.append(Figure("reward with peers, defaults less as it was", more.mean, "reward", "higher", "≥ 0"))
    return found


def main() -> None:
    EXPERIMENT.run(document, lambda results, rounds: figures(results))


if __name__ == "__main__":
    main()
