"""How old may the generating weights be? One learner whose engine is a fixed number of versions behind.

    python -m scripts.experiments.staleness [--rounds 300] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

``objective.research.weights_behind`` delays the weights by exactly this many optimizer steps (fewer only at the
beginning): the effect of asynchronous generation on a learner, without its randomness. The node is alone, so nothing
else differs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scripts.experiments.harness.experiment import (
    WINDOW,
    Condition,
    Experiment,
    Measuring,
    over_seeds,
    reward_plot,
    run_plan,
    seconds_a_run,
)
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.harness.skills import SKILLS
from scripts.experiments.models import STUDENT
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.report_document import Document, conditions_table, table
from scripts.experiments.reports.success import effective_share, mean_success

ROUNDS: Final = 300
GROUPS: Final = 8
COMPLETIONS: Final = 8
LEARNING_RATE: Final = 3e-4
MEASURING: Final = Measuring(times=1, prompts=100, samples=4)
BEHIND: Final = (0, 1, 4, 16, 64)
VCPO: Final = "token IS, VCPO"
CORRECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "none": ("no correction", "none"),
    "token IS": ("truncated ratios token by token", "token_tis"),
    "sequence IS": ("one truncated ratio for a whole completion", "sequence_tis"),
    "IcePop": ("tokens whose ratio leaves its band are left out", "icepop"),
    "masked IS": ("token ratios clipped, completions with an absurd token vetoed", "masked_is"),
    "sequence mask": ("completions below 0 that drifted too far are left out", "sequence_mask"),
    "F-TIS": ("truncated token ratios and a divergence filter", "f_tis"),
    "byte-aligned": ("the default: with one tokenizer, F-TIS", "byte_aligned"),
    "decoupled PPO": ("clipped around a proximal policy", "decoupled_ppo"),
    "PPO-EWMA": ("clipped around a moving average of the weights", "ppo_ewma"),
    VCPO: ("token IS, the learning rate scaled by √ of the effective sample share", "token_tis"),
}


def name_of(correction: str, behind: int) -> str:
    return f"{correction}, {behind} behind"


def _research(name: str, behind: int) -> dict[str, object]:
    delayed: dict[str, object] = {"weights_behind": behind}
    return {**delayed, "ess_learning_rate": True} if name == VCPO else delayed


def conditions() -> list[Condition]:
    learner = {"own_groups": GROUPS, "foreign_groups": 0, "completions": COMPLETIONS, "learning_rate": LEARNING_RATE}
    return [
        Condition(
            name_of(name, behind),
            f"{what}; {behind} versions behind",
            {"learner": learner, "objective": {"correction": correction, "research": _research(name, behind)}},
        )
        for name, (what, correction) in CORRECTIONS.items()
        for behind in BEHIND
    ]


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    nodes = {"learner": STUDENT.key}
    return run_plan("staleness", condition, seed, rounds, nodes=nodes, tasks=tuple(SKILLS), measuring=MEASURING)


EXPERIMENT: Final = Experiment(
    name="staleness",
    description=__doc__,
    conditions=conditions(),
    plan=plan,
    rounds=ROUNDS,
    recipes=(STUDENT,),
)
Results = Mapping[str, Sequence[RunResult]]


def matrix(results: Results, value: Callable[[RunResult], float], digits: int) -> str:
    """Returns a table with a row per correction and a column per number of versions behind."""
    rows = []
    for correction in CORRECTIONS:
        names = [name_of(correction, behind) for behind in BEHIND]
        if any(name in results for name in names):
            cells = [over_seeds(results[n], value).text(digits) if n in results else "" for n in names]
            rows.append([correction, *cells])
    return table(["versions behind", *map(str, BEHIND)], rows)


def on_policy(results: Results, rounds: int) -> Estimate | None:
    """Returns the final reward at 0 versions behind, over all corrections: there they should not differ."""
    runs = [r for c in CORRECTIONS for r in results.get(name_of(c, 0), ())]
    by_seed: dict[int, list[float]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(mean_success(run, rounds))
    return estimate([statistics.fmean(values) for values in by_seed.values()]) if by_seed else None


def best_at(results: Results, behind: int, rounds: int) -> tuple[str, Estimate] | None:
    found = {
        c: over_seeds(results[name_of(c, behind)], lambda r: mean_success(r, rounds))
        for c in CORRECTIONS
        if name_of(c, behind) in results
    }
    best = max(found, key=lambda c: found[c].mean, default=None)
    return (best, found[best]) if best is not None else None


def sentences(results: Results, rounds: int) -> str:
    base, said = on_policy(results, rounds), []
    for behind in BEHIND[1:]:
        best = best_at(results, behind, rounds)
        if base is not None and best is not None:
            name, value = best
            share = 100 * (value.mean / base.mean - 1)
            said.append(
                f"- {behind} behind: best is {name} with {value.text()}, {share:+.1f} % of on-policy's {base.text()}."
            )
    return "\n".join(said)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"One node alone that half knows {len(SKILLS)} skills; {GROUPS} groups of {COMPLETIONS} an update, learning "
        f"rate {LEARNING_RATE:g}, {rounds} updates. Final reward: sampled success of the newest weights on "
        f"{MEASURING.prompts} held-out prompts a skill. ± is the 95 % interval over seeds (Student's t)."
    )
    written = Document("staleness", "Generating with old weights: which correction", intro, command)
    counts = {c: len(results.get(name_of(c, BEHIND[-1]), ())) for c in CORRECTIONS}
    written.section("Conditions", conditions_table({c: what for c, (what, _) in CORRECTIONS.items()}, counts))
    written.parts.append(seconds_a_run(results))
    written.section("Final reward", matrix(results, lambda r: mean_success(r, rounds), 3))
    share = matrix(results, lambda r: effective_share(r.nodes[0]), 2)
    written.section("Effective sample share (Σw)² / (n Σw²), mean over updates", share)
    reward = matrix(results, lambda r: statistics.fmean(r.nodes[0].reward), 3)
    written.section("Mean sampled reward over the run, by the weights that generated", reward)
    written.section("What happened", sentences(results, rounds))
    for behind in (BEHIND[-2], BEHIND[-1]):
        shown = {c: results[name_of(c, behind)] for c in CORRECTIONS if name_of(c, behind) in results}
        if shown:
            title = f"{behind} versions behind: sampled reward, mean of {WINDOW} updates"
            written.plot(f"-{behind}", title, reward_plot(title, shown, rounds, lambda run: run.nodes[0].reward))
    return written


def main() -> None:
    EXPERIMENT.run(document)


if __name__ == "__main__":
    main()
