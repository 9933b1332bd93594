"""What is a foreign group worth? Eight skills, four of them harder, at equal processor seconds.

    python -m scripts.experiments.worth [--rounds 120] [--seeds 3] [--only PATTERN] [--jobs 1] [--json]

Four nodes have one easy skill and one harder one each, and learn the six others from each other. What generating saves
is spent on learning, so conditions are compared at the processor seconds of ``--rounds`` updates of ``TODAY``, not at
equal updates; success between two measurements is interpolated. The control is a pupil that is given right answers by
hand (``harness.pupil``): what no way of learning from peers can be expected to exceed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import structs

from scripts.experiments.harness.experiment import (
    Condition,
    Experiment,
    Measuring,
    curve,
    run_plan,
    seconds_a_run,
)
from scripts.experiments.harness.plans import ExperimentPlan, NodeHistory, RunResult
from scripts.experiments.harness.pupil import PupilPlan, PupilResult
from scripts.experiments.harness.skills import EIGHT_SKILLS
from scripts.experiments.models import PAIRS, EightSkillRecipe
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, Figure, conditions_table, print_figures, table

ROUNDS: Final = 120
GROUPS: Final = 16  # own ones, two of each skill
COMPLETIONS: Final = 4
LEARNING_RATE: Final = 3e-4
MEASURING: Final = Measuring(times=6, prompts=100, samples=0)
LACKED: Final = 0.3  # greedy success at the start, below which a node lacks a skill
BAR: Final = 0.6
LOSS: Final = 0.1

PUPIL_BATCH: Final = 96
PUPIL_PROMPTS: Final = 200
ALONE: Final = "pupil: "
# who, distinct examples of each skill, learning rate, steps. 240: as many as one specialist asks itself in 120 rounds.
PUPILS: Final[Mapping[str, tuple[EightSkillRecipe, int, float, int]]] = {
    "always new, 1e-3": (PAIRS[1], 0, 1e-3, 240),
    "always new, 1e-3, 80 steps": (PAIRS[1], 0, 1e-3, 80),
    "240 of each, 1e-3": (PAIRS[1], 240, 1e-3, 240),
    "240 of each, 3e-4": (PAIRS[1], 240, 3e-4, 240),
    "another, 240 of each, 1e-3": (PAIRS[0], 240, 1e-3, 240),
}

TODAY, AUTO = "16 groups", "auto"
# name: (what it is, foreign groups, further settings of the learner, parts of the learner replaced)
RULES: Final[Mapping[str, tuple[str, int | str, Mapping[str, object], tuple[str, ...]]]] = {
    TODAY: ("as many foreign groups as own ones, each in four rounds at most: the defaults before", GROUPS, {}, ()),
    AUTO: ("the defaults: right answers of peers are remembered and seen again", "auto", {}, ()),
    "96 groups": ("all that is announced, each in four rounds at most", 96, {}, ()),
    "96 groups, 1e-3": ("the same, at 3.3 times the learning rate", 96, {"learning_rate": 1e-3}, ()),
    "64 groups in 16 rounds, 1e-3": (
        "each seen again in 16 rounds, at 3.3 times the learning rate",
        64,
        {"learning_rate": 1e-3, "foreign_uses": 16},
        (),
    ),
    "auto, at the learning rate": (
        "as auto; steps on remembered answers no longer than others",
        "auto",
        {},
        ("imitation at the learning rate",),
    ),
}


def conditions() -> list[Condition]:
    found = []
    for name, (what, foreign, changes, _) in RULES.items():
        sizes = {"own_groups": GROUPS, "foreign_groups": foreign, "share_groups": GROUPS, "completions": COMPLETIONS}
        settings = {"learner": {**sizes, "learning_rate": LEARNING_RATE, **changes}}
        found.append(Condition(name, what, settings, seeds_most=None if name in (TODAY, AUTO) else 1))
    for name, (recipe, distinct, rate, steps) in PUPILS.items():
        examples = f"{distinct} right answers of each of six skills" if distinct else "always new right answers"
        who = recipe.name.replace("-", " and ")
        what = f"{who}; {examples}, by hand; {steps} steps of AdamW at {rate:g}; no swarm, no rewards"
        found.append(Condition(ALONE + name, what, {}, seeds_most=1))
    return found


def plan(condition: Condition, seed: int, rounds: int) -> ExperimentPlan[RunResult | PupilResult]:
    if condition.name in RULES:
        nodes = {recipe.name: recipe.key for recipe in PAIRS}
        made = run_plan("worth", condition, seed, rounds, nodes=nodes, tasks=tuple(EIGHT_SKILLS), measuring=MEASURING)
        return structs.replace(made, ablations=RULES[condition.name][3])
    recipe, distinct, rate, steps = PUPILS[condition.name.removeprefix(ALONE)]
    own = tuple(name for name, _ in recipe.taught)
    return PupilPlan("worth", condition.name, seed, recipe.key, own, distinct, steps, PUPIL_BATCH, rate, PUPIL_PROMPTS)


EXPERIMENT: Final = Experiment(
    name="worth",
    description=(__doc__ or "").partition("\n")[0],
    conditions=conditions(),
    plan=plan,
    rounds=ROUNDS,
    recipes=PAIRS,
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


def pupil_table(results: Mapping[str, Sequence[PupilResult]]) -> str:
    rows = []
    for name, pupils in results.items():
        seconds = estimate([pupil.cpu_seconds for pupil in pupils]).text(0)
        own = pupils[0].plan.own
        cells = [
            "had" if skill in own else estimate([pupil.after[skill] for pupil in pupils]).text(2)
            for skill in EIGHT_SKILLS
        ]
        kept = min(pupil.after[skill] - pupil.before[skill] for pupil in pupils for skill in own)
        cells.append(f"{kept:+.2f}")
        rows.append([name, seconds, *cells])
    return table(["pupil", "processor seconds", *EIGHT_SKILLS, "change of one that it had, worst"], rows)


def bar_sentence(runs: Runs, seconds: float) -> str:
    said = []
    for name in (TODAY, AUTO):
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


def document(runs: Runs, pupils: Mapping[str, Sequence[PupilResult]], rounds: int, command: str) -> Document:
    intro = (
        f"Four nodes of {len(EIGHT_SKILLS)} skills, one easy and one harder one each at the start: "
        f"{'; '.join(recipe.name.replace('-', ' and ') for recipe in PAIRS)}. {GROUPS} own groups of {COMPLETIONS} an "
        f"update, learning rate {LEARNING_RATE:g}. Success is greedy on held-out prompts, mean of the nodes that "
        f"lacked the skill (below {LACKED:g} at the start); processor seconds are those of all four nodes. "
        "± is the 95 % interval over seeds (Student's t)."
    )
    written = Document("worth", "What a foreign group is worth", intro, command)
    counts = {name: len(results) for name, results in {**runs, **pupils}.items()}
    written.section("Conditions", conditions_table({c.name: c.what for c in EXPERIMENT.conditions}, counts))
    written.parts.append(seconds_a_run({**runs, **pupils}))
    seconds = budget_seconds(runs)
    if seconds is not None:
        heading = f"At equal processor seconds: {seconds:.0f}, those of {rounds} updates of “{TODAY}”"
        written.section(heading, budget_table(runs, seconds), bar_sentence(runs, seconds))
    written.section(f"After {rounds} updates", end_table(runs))
    if pupils:
        what = (
            f"A specialist is given right answers of the six skills that it lacks: each step on {PUPIL_BATCH} of them "
            f"and a third as many of its own. A node has a quarter of the seconds above."
        )
        written.section("The control: a pupil taught by hand", what, pupil_table(pupils))
    shown = {name: results for name, results in runs.items() if name in (TODAY, AUTO)}
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


def figures(runs: Runs, pupils: Mapping[str, Sequence[PupilResult]], rounds: int) -> list[Figure]:
    """Returns the figures with a bar whose conditions have results."""
    seconds = budget_seconds(runs)
    if seconds is None:
        return []

    found = []
    for name in (TODAY, AUTO):
        if name in runs:
            mean = estimate([mean_of_lacking(run, seconds) for run in runs[name]])
            found.append(Figure(f"{name}: success on skills lacked at equal seconds", mean.mean, "", "higher"))
            found.append(Figure(f"{name}: half of its interval", mean.half_width, "", "lower"))
            least = min(each.mean for each in reached(runs[name], seconds).values())
            found.append(Figure(f"{name}: the skill learnt least", least, "", "higher", f"≥ {BAR:g}"))
    for name, results in pupils.items():
        lacked = [skill for skill in EIGHT_SKILLS if skill not in results[0].plan.own]
        least = min(estimate([p.after[s] for p in results]).mean for s in lacked)
        found.append(Figure(f"{name}: the skill learnt least", least, "", "higher"))
    return found


def main() -> None:
    options = EXPERIMENT.options()
    results = EXPERIMENT.results(options)
    runs = {n: [r for r in of_name if isinstance(r, RunResult)] for n, of_name in results.items() if n in RULES}
    pupils = {n: [r for r in of_name if isinstance(r, PupilResult)] for n, of_name in results.items() if n not in RULES}
    path = document(runs, pupils, options.rounds, EXPERIMENT.command(options)).write(options.docs)
    found = figures(runs, pupils, options.rounds)
    print_figures(EXPERIMENT.name, found, written=path, as_json=options.json)


if __name__ == "__main__":
    main()
