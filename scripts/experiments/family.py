"""Four nodes with one model that learn by reinforcement, with and without averaging their weights.

    python -m scripts.experiments.family [--rounds 80] [--seeds 4] [--only PATTERN] [--jobs 2] [--json]

One model on four nodes that draw their own prompts and samples; under some conditions they also share rollouts. All
learning and averaging is the nodes' own code over the simulated network (``nodes_run.py``): heartbeats, pairing, blobs,
and the outer step during rounds, NoLoCo's in dense bf16 or the compressed one. With NoLoCo's constants an outer step is
η / (1 - μ) = 1.4 times as long as the inner steps, so a node alone with 1.4 times the learning rate is a control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.experiment import (
    WINDOW,
    Condition,
    Experiment,
    Measuring,
    Settings,
    curve,
    difference,
    mean_rewards,
    over_nodes,
    over_seeds,
    reward_plot,
    run_plan,
)
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.harness.skills import SKILLS
from scripts.experiments.models import STUDENT
from scripts.experiments.reports.intervals import Estimate, over_tokens
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.reports.success import mean_success

ROUNDS: Final = 80
NODES: Final = {f"node-{letter}": STUDENT.key for letter in "abcd"}  # the name seeds a node's draws
LEARNING_RATE: Final = 3e-4
GROUPS: Final = 8
LEARNER: Final = {
    "own_groups": GROUPS,
    "completions": 8,
    "foreign_groups": 0,
    "share_groups": 0,
    "learning_rate": LEARNING_RATE,
}
SHARING: Final = {**LEARNER, "foreign_groups": GROUPS, "share_groups": GROUPS}
MEASURING: Final = Measuring(times=4, prompts=100, samples=4)
EVERY, SELDOM = 5, 20  # rounds; 5 as ``starling demo --family`` has it
NONE, AVERAGED = "no averaging", f"averaging every {EVERY} rounds"
SHARED, BOTH = "sharing", f"sharing, averaging every {EVERY} rounds"
FASTER, RARELY = "no averaging, 1.4 × the rate", f"averaging every {SELDOM} rounds"
COMPRESSED = f"averaging every {EVERY} rounds, compressed"
AVERAGING: Final[Settings] = {"averaging": {"every_rounds": EVERY, "encoding": "dense-bf16"}}
CONDITIONS: Final = (
    Condition(NONE, "each node alone", {"learner": LEARNER}),
    Condition(AVERAGED, "NoLoCo's outer step with one of the others now and then", {"learner": LEARNER, **AVERAGING}),
    Condition(SHARED, f"{GROUPS} groups of the others an update beside the own", {"learner": SHARING}),
    Condition(BOTH, "both", {"learner": SHARING, **AVERAGING}),
    Condition(FASTER, "control", {"learner": {**LEARNER, "learning_rate": 1.4 * LEARNING_RATE}}),
    Condition(
        RARELY,
        "the same, seldom",
        {"learner": LEARNER, "averaging": {"every_rounds": SELDOM, "encoding": "dense-bf16"}},
    ),
    Condition(
        COMPRESSED,
        "the update in two bits a value and a slice of the weights, as large models do",
        {"learner": LEARNER, "averaging": {"every_rounds": EVERY, "encoding": "sparse-2bit"}},
    ),
)
# condition, its base, and whether it has a bar
COMPARED: Final = (
    (AVERAGED, NONE, True),
    (BOTH, SHARED, True),
    (AVERAGED, FASTER, False),
    (RARELY, NONE, False),
    (COMPRESSED, NONE, False),
    (COMPRESSED, AVERAGED, False),
    (SHARED, NONE, False),
)


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    return run_plan("family", condition, seed, rounds, nodes=NODES, tasks=tuple(SKILLS), measuring=MEASURING)


EXPERIMENT: Final = Experiment(
    name="family",
    description=__doc__,
    conditions=CONDITIONS,
    plan=plan,
    rounds=ROUNDS,
    recipes=lambda condition: (STUDENT,),
)
Results = Mapping[str, Sequence[RunResult]]


def budget_tokens(results: Results) -> int:
    """Returns the fewest tokens that a node of any run generated."""
    return min(sum(node.tokens) for runs in results.values() for run in runs for node in run.nodes)


def reward(result: RunResult, tokens: int) -> float:
    """Returns the mean sampled reward over a node's first ``tokens``."""
    return over_nodes(result, lambda node: over_tokens(node.reward, node.tokens, tokens))


def last_apart(result: RunResult) -> float:
    """Returns the distance between the nodes at the end."""
    return result.apart[-1]


def gains(results: Results, name: str, base: str, rounds: int) -> tuple[Estimate, Estimate] | None:
    """Returns the gain of ``name`` over ``base`` in final success, and in reward at equal tokens, paired by seed."""
    at_the_end = difference(results, name, base, partial(mean_success, round_number=rounds))
    at_equal_tokens = difference(results, name, base, partial(reward, tokens=budget_tokens(results)))
    return (at_the_end, at_equal_tokens) if at_the_end is not None and at_equal_tokens is not None else None


def rows(results: Results, rounds: int) -> str:
    header = ["condition", "success at the start", f"after {rounds} rounds", "reward at equal tokens",
              "tokens a node", "apart at the end", "outer steps", "kB of averaging"]  # fmt: skip
    tokens = budget_tokens(results)
    cells = []
    for name, runs in results.items():
        cells.append(
            [
                name,
                over_seeds(runs, lambda run: mean_success(run, 0)).text(),
                over_seeds(runs, lambda run: mean_success(run, rounds)).text(),
                over_seeds(runs, lambda run: reward(run, tokens)).text(),
                f"{over_seeds(runs, lambda run: over_nodes(run, lambda node: sum(node.tokens))).mean:,.0f}",
                over_seeds(runs, last_apart).text(4),
                f"{over_seeds(runs, lambda run: over_nodes(run, lambda node: node.outer_steps)).mean:.1f}",
                f"{over_seeds(runs, lambda run: over_nodes(run, lambda node: node.averaging_bytes / 1e3)).mean:.0f}",
            ]
        )
    return table(header, cells)


def gains_table(results: Results, rounds: int) -> str:
    cells = []
    for name, base, _ in COMPARED:
        more = gains(results, name, base, rounds)
        if more is not None:
            cells.append([f"{name} against {base}", *(each.text() for each in more)])
    return table(["", "success at the end, more", "reward at equal tokens, more"], cells)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"{len(NODES)} nodes with one model that half knows {len(SKILLS)} skills; {GROUPS} own groups of "
        f"{LEARNER['completions']} an update, learning rate {LEARNING_RATE:g}, {rounds} updates each. Success: "
        f"sampled, on {MEASURING.prompts} held-out prompts a skill, mean over skills and nodes. Reward: mean over a "
        "node's own completions while it generated as many tokens as the one that generated the fewest. Apart: mean of "
        "‖θ_i - θ_j‖ / ‖θ_i‖ over all pairs. kB: received by one node. ± is the 95 % interval over seeds (Student's "
        "t); differences are paired by seed. How the rules compare on a language model: [averaging.md](averaging.md)."
    )
    written = EXPERIMENT.page("Averaging weights in a family that learns by reinforcement", intro, results, command)
    written.section("Success", rows(results, rounds))
    written.section("Against each other", gains_table(results, rounds))
    title = f"Sampled reward, mean of {WINDOW} updates and of all nodes"
    written.plot("", title, reward_plot(title, results, rounds, mean_rewards))
    at = MEASURING.rounds(rounds)
    lines = [curve(name, at, [run.apart for run in runs]) for name, runs in results.items()]
    title = "Mean distance between the nodes' weights"
    written.plot("-distance", title, line_plot(title, lines, x_label="updates a node", y_label="‖θ_i - θ_j‖ / ‖θ_i‖"))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    found = []
    for name, base, has_bar in COMPARED:
        more = gains(results, name, base, rounds)
        if more is not None:
            bar = "> 0" if has_bar else ""
            for what, each in zip(("success at the end", "reward at equal tokens"), more, strict=True):
                more_what = f"{name} against {base}: more {what}"
                found.append(Figure(more_what, each.mean, "", "higher", bar))
                found.append(Figure(f"{more_what}, low end of the 95 % interval", each.low, "", "higher", bar))
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
