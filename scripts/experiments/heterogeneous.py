"""Which correction suits policies of different models and tokenizers? The three built-in models, together.

    python -m scripts.experiments.heterogeneous [--rounds 80] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

wren, robin and finch differ in architecture and tokenizer, and each is partly trained on two of the default swarm's six
tasks. Every correction is run without a floor under the weight and with floor 1 (algorithms for one tokenizer use
groups of another as text). In published results the stronger member loses, so each member's result is reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from node.tasks.default_swarm import DEFAULT_TASKS
from scripts.experiments.harness.experiment import (
    WINDOW,
    Condition,
    Experiment,
    Measuring,
    over_nodes,
    over_seeds,
    reward_plot,
    run_plan,
)
from scripts.experiments.harness.experiment import difference as paired_difference
from scripts.experiments.harness.plans import NodeHistory, RunPlan, RunResult
from scripts.experiments.reports.intervals import Estimate
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.reports.success import effective_share, mean_success, member, member_success, success
from scripts.experiments.sharing import RULES, SHIPPED

ROUNDS: Final = 80
GROUPS: Final = 12  # own, and as many foreign ones; two for each task
COMPLETIONS: Final = 4
MODELS: Final = ("wren", "robin", "finch")
TASKS: Final = tuple(task.name for task in DEFAULT_TASKS)
MEASURING: Final = Measuring(times=1, prompts=50, samples=2)
WEAK: Final = 0.2  # sampled success at the start, below which a task counts as one that the model is weak on

ALONE, TEXT_ONLY = "alone", "text only"
CORRECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "token IS": ("token_tis", "as byte-aligned, without the divergence filter"),
    "sequence IS": ("sequence_tis", "one truncated ratio for a whole completion"),
    "F-TIS": ("f_tis", "truncated token ratios and the divergence filter where tokenizers are equal, else as text"),
    "byte-aligned": ("byte_aligned", "truncated ratios of spans between byte positions where both have a boundary"),
}
FLOORS: Final = (0.0, 1.0)


def conditions() -> list[Condition]:
    learner = {"own_groups": GROUPS, "foreign_groups": GROUPS, "share_groups": GROUPS, "completions": COMPLETIONS}
    found = [
        Condition(ALONE, "own groups alone", {"learner": {**learner, "foreign_groups": 0}}),
        Condition(
            TEXT_ONLY,
            "no correction: every foreign completion is text at weight 1",
            {"learner": learner, "objective": {"correction": "none"}},
        ),
    ]
    for name, (correction, what) in CORRECTIONS.items():
        for floor in FLOORS:
            objective = {"correction": correction, "ratio_floor": floor}
            words = f"{what}; {'no floor' if floor == 0 else f'floor {floor:g} for positive advantages'}"
            found.append(Condition(f"{name}, floor {floor:g}", words, {"learner": learner, "objective": objective}))
    what, hacpo = RULES["hacpo"]
    every = {**learner, "foreign_groups": GROUPS * (len(MODELS) - 1), "foreign_uses": 1}
    found.append(Condition("HACPO", what, {**hacpo, "learner": every}))
    found.append(Condition(SHIPPED, "no setting at all", {}, strangers=True))
    return found


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    nodes = {name: f"builtin:{name}" for name in MODELS}
    return run_plan("heterogeneous", condition, seed, rounds, nodes=nodes, tasks=TASKS, measuring=MEASURING)


EXPERIMENT: Final = Experiment(
    name="heterogeneous",
    description=__doc__,
    conditions=conditions(),
    plan=plan,
    rounds=ROUNDS,
)
Results = Mapping[str, Sequence[RunResult]]


def success_where_weak(node: NodeHistory, round_number: int) -> float:
    """Returns the same over the tasks that the node was weak on at the start."""
    weak = [name for name, share in node.measured(0).sampled.items() if share < WEAK]
    return statistics.fmean(node.measured(round_number).sampled[name] for name in weak)


def by_strength(results: Results) -> list[str]:
    """Returns the members, weakest first, by their success before training."""
    nodes = [node for of_name in results.values() for result in of_name for node in result.nodes]
    starts = {name: statistics.fmean(success(n, 0) for n in nodes if n.name == name) for name in MODELS}
    return sorted(MODELS, key=lambda name: starts[name])


def main_table(results: Results, rounds: int) -> str:
    members = by_strength(results)
    header = ["condition", *(f"{name}{_rank(members, name)}" for name in members), "mean", "tasks weak on"]
    header += ["mean sampled reward", "effective sample share"]
    start = next(iter(results.values()))
    rows = [["at the start", *_cells(start, members, 0), "", ""]]
    for condition, runs in results.items():
        reward = over_seeds(runs, lambda r: over_nodes(r, lambda n: statistics.fmean(n.reward)))
        share = over_seeds(runs, lambda r: over_nodes(r, effective_share))
        rows.append([condition, *_cells(runs, members, rounds), reward.text(), share.text(2)])
    return table(header, rows)


def _cells(runs: Sequence[RunResult], members: Sequence[str], at: int) -> list[str]:
    return [
        *(over_seeds(runs, partial(member_success, name=name, round_number=at)).text() for name in members),
        over_seeds(runs, partial(mean_success, round_number=at)).text(),
        over_seeds(runs, lambda r: over_nodes(r, lambda n: success_where_weak(n, at))).text(),
    ]


def _rank(members: Sequence[str], name: str) -> str:
    return " (weakest)" if name == members[0] else " (strongest)" if name == members[-1] else ""


def difference(results: Results, one: str, other: str, name: str, rounds: int) -> Estimate:
    """Returns the final success of a member under ``one`` less that under ``other``, paired by seed."""
    found = paired_difference(results, one, other, partial(member_success, name=name, round_number=rounds))
    assert found is not None
    return found


def sentences(results: Results, rounds: int) -> str:
    members, said = by_strength(results), []
    for base in (ALONE, TEXT_ONLY):
        for condition in results:
            if base in results and condition not in (ALONE, base):
                parts = [f"{n} {difference(results, condition, base, n, rounds).text()}" for n in members]
                said.append(f"- {condition}, less {base}: {', '.join(parts)}.")
    return "\n".join(["Final success, differences paired by seed:", "", *said])


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"The three built-in models on the default swarm's {len(TASKS)} tasks: three architectures, three tokenizers. "
        f"{GROUPS} own and up to {GROUPS} foreign groups of {COMPLETIONS} an update, default learning rates, {rounds} "
        f"updates. Success is sampled at temperature 1 on {MEASURING.prompts} held-out prompts a task, "
        f"{MEASURING.samples} completions each. ± is the 95 % interval over seeds (Student's t)."
    )
    written = EXPERIMENT.page("Unlike models and tokenizers: which correction", intro, results, command)
    written.section("Final success", main_table(results, rounds))
    written.section("What happened", sentences(results, rounds))
    for which, name in (("weakest", by_strength(results)[0]), ("strongest", by_strength(results)[-1])):
        title = f"{name}, the {which} member: sampled reward, mean of {WINDOW} updates"
        plot = reward_plot(title, results, rounds, lambda run, name=name: member(run, name).reward)  # type: ignore[misc]
        written.plot(f"-{which}", title, plot)
    return written


def main() -> None:
    EXPERIMENT.run(document)


if __name__ == "__main__":
    main()
