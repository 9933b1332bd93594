"""Can a node find its own learning rate? A built-in model alone on the default swarm's tasks.

    python -m scripts.experiments.settings [--rounds 150] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

Rates are times the automatic one, which goes by the size of the model. First a grid of fixed rates; then rules that
change the rate while the node learns (``harness/tuned_run.py``), started at a tenth of the automatic rate, at it, and
at ten times it. What a rule aims at was chosen on ``CHOSEN_ON`` alone, and is judged on ``JUDGED_ON``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from node.learner.steps.rate_control import FIRST_MEASURED
from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.experiment import Condition, Experiment, Measuring, over_seeds, run_plan
from scripts.experiments.harness.tuned_run import Rule, TunedPlan, TunedResult
from scripts.experiments.heterogeneous import TASKS
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.reports.success import mean_success

ROUNDS: Final = 150
MEASURING: Final = Measuring(times=2, prompts=100, samples=4)
CHOSEN_ON, JUDGED_ON, ALSO_ON = "finch", "wren", "robin"
GRID: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
WRONG: Final = (0.1, 10.0)
ARM_ROUNDS: Final = 15
BAR_WRONG, BAR_RIGHT = 0.85, 0.95
WORDS: Final = {
    "fixed": "{} times the automatic rate of before",
    "kl": "begins there, and goes by how far steps move the policy",
    "arms": "begins there; two arms of {} rounds, three times apart",
}


def _rules() -> dict[str, tuple[str, Rule]]:
    """Returns by condition the model and the rule."""
    wanted = [(CHOSEN_ON, Rule("fixed", at)) for at in GRID[1:-1]]
    wanted += [(JUDGED_ON, Rule("fixed", at)) for at in GRID]
    wanted += [(JUDGED_ON, Rule("kl", at)) for at in (1.0, *WRONG)]
    wanted += [(JUDGED_ON, Rule("arms", at, every=ARM_ROUNDS)) for at in WRONG]
    wanted += [(ALSO_ON, Rule("fixed", 1.0)), *((ALSO_ON, Rule("kl", at)) for at in WRONG)]
    names = {"fixed": "fixed", "kl": "KL from", "arms": "arms from"}
    return {f"{model}, {names[rule.kind]} {rule.start:g}": (model, rule) for model, rule in wanted}


RULES: Final = _rules()
THRICE: Final = (f"{JUDGED_ON}, fixed 1", *(f"{JUDGED_ON}, KL from {at:g}" for at in (1.0, *WRONG)))
CONDITIONS: Final = tuple(
    Condition(
        name, WORDS[rule.kind].format(f"{rule.every or rule.start:g}"), {}, seeds_most=None if name in THRICE else 1
    )
    for name, (_, rule) in RULES.items()
)


def plan(condition: Condition, seed: int, rounds: int) -> TunedPlan:
    return tuned_plan(condition, seed, rounds, *RULES[condition.name])


def tuned_plan(condition: Condition, seed: int, rounds: int, model: str, rule: Rule) -> TunedPlan:
    nodes = {model: f"builtin:{model}"}
    rounds = rounds // 2 if rule.kind == "arms" else rounds  # of both arms together as many as elsewhere
    found = run_plan("settings", condition, seed, rounds, nodes=nodes, tasks=TASKS, measuring=MEASURING)
    return TunedPlan(**{name: getattr(found, name) for name in found.__struct_fields__}, rule=rule)


EXPERIMENT: Final = Experiment(name="settings", description=__doc__, conditions=CONDITIONS, plan=plan, rounds=ROUNDS)
Results = Mapping[str, Sequence[TunedResult]]


def model_of(name: str) -> str:
    return RULES[name][0]


def best_fixed(results: Results, model: str, rounds: int) -> tuple[str, Estimate]:
    """Returns the fixed rate of most success at the end, and that success."""
    fixed = {
        name: over_seeds(runs, partial(mean_success, round_number=rounds))
        for name, runs in results.items()
        if model_of(name) == model and RULES[name][1].kind == "fixed"
    }
    return max(fixed.items(), key=lambda item: item[1].mean)


def success_at(run: TunedResult, rounds: float) -> float:
    """Returns success after so many rounds, between two measurements along the straight line."""
    return _between([m.round for m in run.nodes[0].measurements], run, rounds)


def success_in(run: TunedResult, seconds: float) -> float:
    """Returns the same after so many processor seconds of rounds; that at the end where the run took fewer."""
    return _between(run.cpu_at, run, seconds)


def _between(at: Sequence[float], run: TunedResult, wanted: float) -> float:
    points = list(zip(at, (statistics.fmean(m.sampled.values()) for m in run.nodes[0].measurements), strict=True))
    for (before, low), (after, high) in pairwise(points):
        if wanted <= after:
            return low + (high - low) * (wanted - before) / (after - before)
    return points[-1][1]


def lost_share(run: TunedResult) -> float:
    """Returns the part of the rounds' processor time that the rule took, lost rounds included."""
    return run.rule_seconds / run.cpu_at[-1]


def at_equal_time(run: TunedResult, rounds: int) -> float:
    """Returns success when the run had taken as long as ``rounds`` without the rule."""
    return success_at(run, rounds * (1 - lost_share(run)))


def of_best(runs: Sequence[TunedResult], best: Estimate, rounds: int) -> float:
    return statistics.fmean(at_equal_time(run, rounds) for run in runs) / best.mean


def of_gain(runs: Sequence[TunedResult], best: Estimate, rounds: int) -> float:
    """Returns the same of success less that at the start."""
    start = statistics.fmean(success_at(run, 0) for run in runs)
    return (statistics.fmean(at_equal_time(run, rounds) for run in runs) - start) / (best.mean - start)


def grid_table(results: Results, rounds: int) -> str:
    rows = []
    for name, runs in results.items():
        if RULES[name][1].kind != "fixed":
            continue
        halfway, end = runs[0].plan.measure_at[1], runs[0].plan.measure_at[-1]
        late = [
            kl / signal**2
            for run in runs
            for kl, signal in list(zip(run.kl, run.signal, strict=True))[FIRST_MEASURED:]
            if kl and signal
        ]
        rows.append(
            [
                name,
                str(len(runs)),
                *(over_seeds(runs, partial(mean_success, round_number=at)).text() for at in (0, halfway, end)),
                over_seeds(runs, lambda run: statistics.fmean(run.nodes[0].reward)).text(),
                f"{statistics.geometric_mean(late):.2g}",
            ]
        )
    header = (
        "condition | seeds | success at the start | halfway | at the end | mean reward "
        "| KL of a whole step, nats a token"
    )
    return table(header.split(" | "), rows)


def rules_table(results: Results, rounds: int) -> str:
    header = (
        "condition | seeds | success at the end | at equal processor time | of the best fixed rate | bar "
        "| of what that gains | rate at the end, times the automatic one | processor time of the rule"
    )
    rows = []
    for name, runs in results.items():
        rule = RULES[name][1]
        if rule.kind == "fixed":
            continue
        best, success = best_fixed(results, model_of(name), rounds)
        wrong = rule.start != RULES[best][1].start
        half = f" after {runs[0].plan.rounds}" if rule.kind == "arms" else ""
        rows.append(
            [
                name,
                str(len(runs)),
                estimate([success_at(run, run.plan.rounds) for run in runs]).text() + half,
                estimate([at_equal_time(run, rounds) for run in runs]).text(),
                f"{of_best(runs, success, rounds):.2f}",
                f"{BAR_WRONG if wrong else BAR_RIGHT:g}",
                f"{of_gain(runs, success, rounds):.2f}",
                ", ".join(f"{run.factors[-1]:.2g}" for run in runs),
                f"{100 * statistics.fmean(map(lost_share, runs)):.1f} %",
            ]
        )
    return table(header.split(" | "), rows)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"{JUDGED_ON}, {CHOSEN_ON} and {ALSO_ON}, each alone, {rounds} rounds of the shipped defaults on the default "
        f"swarm's {len(TASKS)} tasks, but for the learning rate, which is given as times the automatic one. Success is "
        f"sampled at temperature 1 on {MEASURING.prompts} held-out prompts a task, {MEASURING.samples} completions "
        "each, always the same prompts. At equal processor time: when the run, with all that its rule takes, had used "
        f"what the rounds alone take {rounds} times, between two measurements along the straight line. ± is the 95 % "
        "interval over seeds (Student's t)."
    )
    written = EXPERIMENT.page("Settings: a node that finds its own learning rate", intro, results, command)
    written.section("Fixed rates", grid_table(results, rounds))
    written.section("Rules", rules_table(results, rounds))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    return [
        Figure(f"{name}: of the best fixed rate", of_best(runs, best_fixed(results, model_of(name), rounds)[1], rounds),
               "", "higher")
        for name, runs in results.items()
        if RULES[name][1].kind != "fixed"
    ]  # fmt: skip


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
