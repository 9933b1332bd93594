"""Do four unlike nodes that each know one game teach each other the others, at the defaults?

    python -m scripts.experiments.games [--rounds 120] [--seeds 3] [--only PATTERN] [--jobs 1] [--json]

Four conversations: following keys through a store, a calculator, sorting letters over three turns, a walk on a grid.
Each node plays one of them well and has the form of all. Three of the models differ in size, and two write letters with
other token ids. Each conversation is announced, fetched, replayed and compared as between nodes. "as shipped" has no
setting at all, and peers are strangers whose influence is to be earned; 8/0 has the same nodes without each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.experiment import (
    WINDOW,
    Condition,
    Experiment,
    Measuring,
    curve,
    mean_rewards,
    over_nodes,
    over_seeds,
    reward_plot,
    run_plan,
)
from scripts.experiments.harness.game_models import GameModel, ensure
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.models import MODELS_FOLDER
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.sharing import LACKED, change, final_success, kept, mean_reward, success_of_lacking

GAMES: Final = ("key_value:tiny", "calculator:tiny", "sorting_names:tiny", "grid:tiny")
ALONE, SHIPPED = "8/0", "as shipped"
ROUNDS: Final = 120
MEASURING: Final = Measuring(times=3, prompts=60, samples=1)
TEACHING_STEPS: Final = 300
OTHER_WEIGHT: Final = 0.15  # how often a lesson is of a game that is not taught, relative to 1
CONDITIONS: Final = (
    Condition(ALONE, "own groups alone", {"learner": {"foreign_groups": 0}}),
    Condition(SHIPPED, "no setting: 32 own groups, peers start as strangers", {}, strangers=True),
)


def models(seed: int) -> list[GameModel]:
    """Returns a model for each game, which it knows."""
    return [
        GameModel(
            known.partition(":")[0],
            seed,
            tuple((name, 1.0 if name == known else OTHER_WEIGHT, float(name == known)) for name in GAMES),
            TEACHING_STEPS,
            hidden_size=(96, 80, 96, 64)[number],
            reversed_alphabet=number % 2 == 1,
        )
        for number, known in enumerate(GAMES)
    ]


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    nodes = {model.name: ensure(model, MODELS_FOLDER) for model in models(seed)}
    return run_plan("games", condition, seed, rounds, nodes=nodes, tasks=GAMES, measuring=MEASURING)


EXPERIMENT: Final = Experiment(name="games", description=__doc__, conditions=CONDITIONS, plan=plan, rounds=ROUNDS)
Results = Mapping[str, Sequence[RunResult]]


def rejected(runs: Sequence[RunResult]) -> str:
    counts: dict[str, int] = {}
    for node in (node for run in runs for node in run.nodes):
        for reason, count in node.rejected.items():
            counts[reason] = counts.get(reason, 0) + count
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"A game is lacked where greedy success at the start is below {LACKED:g}; success is the mean reward of "
        f"{MEASURING.prompts} held-out episodes. Means over nodes; ± is the 95 % interval over seeds (Student's t)."
    )
    written = EXPERIMENT.page("Four nodes that teach each other games", intro, results, command)
    rows = [
        [
            name,
            over_seeds(runs, lambda r: rounds * mean_reward(r, rounds)).text(1),
            f"{change(results, name, ALONE, rounds):+.0f} %" if ALONE in results and name != ALONE else "",
            over_seeds(runs, lambda r: final_success(r, rounds, lacked=True)).text(),
            over_seeds(runs, lambda r: kept(r, rounds)).text(),
            f"{over_seeds(runs, lambda r: over_nodes(r, lambda n: n.foreign_groups_used)).mean:.0f}",
            f"{statistics.fmean(run.cpu_seconds for run in runs):.0f}",
        ]
        for name, runs in results.items()
    ]
    header = (
        f"condition | cumulative reward, {rounds} updates | against 8/0 | final success, games lacked | change, game "
        "known | groups of others used, a node | processor seconds"
    )
    written.section("Results", table(header.split(" | "), rows))
    cells = [
        [name, *(over_seeds(runs, lambda r: success_of_lacking(r, game, rounds)).text(2) for game in GAMES)]  # noqa: B023
        for name, runs in results.items()
    ]
    written.parts += ["Final success on each game, nodes that lacked it:", table(["condition", *GAMES], cells)]
    if SHIPPED in results:
        written.parts.append(f"Groups of others that were not used, of all runs: {rejected(results[SHIPPED])}.")
    title = f"Sampled reward, mean of 4 nodes and {WINDOW} updates"
    written.plot("", title, reward_plot(title, results, rounds, mean_rewards))
    at = [each.round for each in next(iter(results.values()))[0].nodes[0].measurements]
    lines = [
        curve(name, at, [[final_success(run, t, lacked=True) for t in at] for run in runs])
        for name, runs in results.items()
    ]
    title = "Greedy success on the games that were lacked"
    written.plot("-lacked", title, line_plot(title, lines, x_label="updates", y_label="success", y_range=(0.0, 1.0)))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    found: list[Figure] = []
    if ALONE in results and SHIPPED in results:
        more = change(results, SHIPPED, ALONE, rounds)
        found.append(Figure("as shipped against 8/0, cumulative reward", more, "%", "higher", "≥ +100"))
    for name, runs in results.items():
        lacked = over_seeds(runs, lambda r: final_success(r, rounds, lacked=True))
        bar = "≥ 0.5" if name == SHIPPED else None
        found.append(Figure(f"{name}: final success on games lacked", lacked.mean, "", "higher", bar))
        had = over_seeds(runs, lambda r: kept(r, rounds))
        found.append(Figure(f"{name}: change on the game known", had.mean, "", "higher"))
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
