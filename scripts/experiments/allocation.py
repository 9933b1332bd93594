"""For which prompts should a node generate? Every allocator of the node against skills in turn.

    python -m scripts.experiments.allocation [--rounds 400] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

A node alone, with four skills and with twelve, each known to a different degree. An allocator chooses what is sampled,
so the rewards of a run do not measure it: success is measured on held-out prompts every few updates, and compared at
equal generated tokens. ``success_by_tokens`` defines the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

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
from scripts.experiments.models import PUPIL, SPECIALISTS, STUDENT, TUTOR, SkillRecipe
from scripts.experiments.reports.plots import Line, line_plot
from scripts.experiments.reports.report_document import Document, Figure, conditions_table, print_figures, table
from scripts.experiments.reports.success_by_tokens import (
    TokenShare,
    course,
    share_of_tokens,
    success_at,
    success_per_token,
)

ROUNDS: Final = 400
COMPLETIONS: Final = 4
LEARNING_RATE: Final = 3e-4
UNIFORM, POSTERIOR, TOLD = "uniform", "posterior", "posterior, told"
METHODS: Final[Mapping[str, str]] = {
    UNIFORM: "skills in turn",
    POSTERIOR: "by what a skill has left to gain and the chance of a success to gain it from",
    TOLD: "the same, beside a peer that has the hard skills and says so; no rollout is shared",
    "sgpo": "sGPO: mastered skills dropped, about 1/p completions of each prompt",
    "dps": "DPS: by the predicted probability that a prompt is partly solved; its paper's forgetting",
}
FORGETTING: Final[Mapping[str, float]] = {"dps": 0.7}  # where it is not the default


@dataclass(frozen=True)
class AllocationSetting:
    """One learner, the peer whose skills it lacks, and the size of an update."""

    name: str
    suffix: str  # of the plot's file
    learner: SkillRecipe
    peer: SkillRecipe  # has the skills that are hard for the learner
    groups: int  # an update
    measuring: Measuring

    def condition(self, method: str) -> str:
        return f"{self.name}: {method}"

    def of(self, results: Results) -> Results:
        """Returns the results of this setting, by method."""
        named = {method: results.get(self.condition(method)) for method in METHODS}
        return {method: runs for method, runs in named.items() if runs is not None}


SWAP: Final = next(recipe for recipe in SPECIALISTS if recipe.name == "swap")
SETTINGS: Final = (
    AllocationSetting("four skills", "", STUDENT, SWAP, 16, Measuring(20, prompts=64, samples=4)),
    AllocationSetting("twelve skills", "-twelve", PUPIL, TUTOR, 32, Measuring(20, prompts=32, samples=4)),
)
Results = Mapping[str, Sequence[RunResult]]


def conditions() -> list[Condition]:
    found = []
    for setting in SETTINGS:
        sizes = {"own_groups": setting.groups, "foreign_groups": 0, "share_groups": 0, "completions": COMPLETIONS}
        learner: dict[str, object] = {**sizes, "learning_rate": LEARNING_RATE}
        for name, what in METHODS.items():
            method = POSTERIOR if name == TOLD else name
            allocation: dict[str, object] = {"method": method}
            if method in FORGETTING:
                allocation["forgetting"] = FORGETTING[method]
            settings: dict[str, dict[str, object]] = {"learner": learner, "allocation": allocation}
            found.append(Condition(setting.condition(name), what, settings))
    return found


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    setting = next(s for s in SETTINGS if condition.name in map(s.condition, METHODS))
    nodes = {"learner": setting.learner.key}
    if condition.name == setting.condition(TOLD):
        nodes["peer"] = setting.peer.key
    tasks = tuple(setting.learner.skills)
    return run_plan("allocation", condition, seed, rounds, nodes=nodes, tasks=tasks, measuring=setting.measuring)


EXPERIMENT: Final = Experiment(
    name="allocation",
    description=(__doc__ or "").partition("\n")[0],
    conditions=conditions(),
    plan=plan,
    rounds=ROUNDS,
    recipes=(STUDENT, PUPIL, SWAP, TUTOR),
)


def budget_of(results: Results) -> float:
    return min(course(run)[0][-1] for runs in results.values() for run in runs)


def shares(results: Results) -> dict[str, TokenShare]:
    """Returns each method's share of uniform's tokens; nothing without uniform."""
    base, budget = results.get(UNIFORM), budget_of(results)
    return {method: share_of_tokens(runs, base, budget) for method, runs in results.items()} if base else {}


def main_table(results: Results) -> str:
    budget, found, rows = budget_of(results), shares(results), []
    for method, runs in results.items():
        share = found.get(method)
        rows.append(
            [
                method,
                over_seeds(runs, lambda r: success_per_token(r, budget)).text(),
                over_seeds(runs, lambda r: float(success_at(r, [budget])[0])).text(),
                share.text() if share else "",
                f"{share.seeds_there} of {share.seeds}" if share else "",
            ]
        )
    header = ["allocator", f"mean success over {budget:,.0f} tokens", "success after them"]
    return table([*header, "share of uniform's tokens to uniform's final success", "seeds that reach it"], rows)


def skill_success(result: RunResult, which: int, skill: str) -> float:
    """Returns the sampled success on one skill at measurement ``which``."""
    return result.nodes[0].measurements[which].sampled[skill]


def skills_table(results: Results) -> str:
    first = next(iter(results.values()))
    skills = list(first[0].nodes[0].measurements[0].sampled)

    def row(name: str, runs: Sequence[RunResult], which: int) -> list[str]:
        cells = [over_seeds(runs, partial(skill_success, which=which, skill=skill)) for skill in skills]
        return [name, *(cell.text(2) for cell in cells)]

    rows = [row("at the start", first, 0), *(row(method, runs, -1) for method, runs in results.items())]
    return table(["final success", *skills], rows)


def section(written: Document, setting: AllocationSetting, results: Results) -> None:
    updates = f"{setting.groups} groups of {COMPLETIONS} completions an update"
    measuring = f"{setting.measuring.prompts} held-out prompts a skill, {setting.measuring.samples} completions each"
    intro = f"{updates}. Success is measured on {measuring}."
    counts = {name: len(runs) for name, runs in results.items()}
    written.section(setting.name.capitalize(), intro, conditions_table(METHODS, counts), main_table(results))
    written.parts.append(skills_table(results))
    grid = [budget_of(results) * n / 40 for n in range(1, 41)]
    lines: list[Line] = [curve(m, grid, [list(success_at(r, grid)) for r in runs]) for m, runs in results.items()]
    title = f"Success on held-out prompts, {setting.name}"
    svg = line_plot(title, lines, x_label="tokens generated", y_label="success", y_range=(0.0, 1.0))
    written.plot(setting.suffix, title, svg)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"One node alone that masters its skills to several degrees, learning rate {LEARNING_RATE:g}, {rounds} "
        "updates. Success: sampled at temperature 1 on held-out prompts, mean of the skills; ± is the 95 % interval "
        "over seeds (Student's t). Uniform's final success is the mean of its seeds over the last tenth of the tokens; "
        "a method is there when the mean of its seeds, over as many tokens, first is. In brackets the 95 % interval "
        "(bootstrap over seeds); “never” where more than one redraw of forty does not get there."
    )
    written = Document("allocation", "Where to spend generation", intro, command)
    for setting in SETTINGS:
        if of_setting := setting.of(results):
            section(written, setting, of_setting)
    written.section("Cost", seconds_a_run(results))
    return written


def figures(results: Results) -> list[Figure]:
    found = []
    for setting in SETTINGS:
        if not (of_setting := setting.of(results)):
            continue
        percent = {method: 100 * share.value for method, share in shares(of_setting).items()}
        others = {method: value for method, value in percent.items() if method != UNIFORM}
        name = "tokens to uniform's final success, of uniform's"
        found += [Figure(f"{setting.name}, {m}: {name}", v, "%", "lower") for m, v in others.items()]
        if others:
            best = min(others.values())
            found.append(Figure(f"{setting.name}, best allocator: {name}", best, "%", "lower", "≤ 60"))
    return found


def main() -> None:
    options = EXPERIMENT.options()
    results = EXPERIMENT.results(options)
    path = document(results, options.rounds, EXPERIMENT.command(options)).write(options.docs)
    print_figures(EXPERIMENT.name, figures(results), written=path, as_json=options.json)


if __name__ == "__main__":
    main()
