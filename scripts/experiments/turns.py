"""Does a small model learn conversations alone? One node, one game, no peer.

    python -m scripts.experiments.turns [--rounds 160] [--seeds 3] [--only PATTERN] [--jobs 1] [--json]

Each model is first taught the form of its game by a scripted player (``scripts.experiments.harness.players``). Then the
node's own learner trains it, ``ROUNDS`` updates of each game, or ``--rounds`` where that is less. Success is the mean
reward of held-out episodes, whose first texts neither the player nor the learner saw: before, between and after.
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
    over_seeds,
    run_plan,
)
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.harness.players import PLAYERS, taught_model
from scripts.experiments.reports.intervals import Estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table

ROUNDS: Final = {"grid:tiny": 60, "guess_number:tiny": 160, "database": 120}
MEASURING: Final = Measuring(times=5, prompts=200, samples=1)
BY_HAND: Final = "8 completions, rate .001"
STEADIER: Final = {"completions": 8, "learning_rate": 1e-3}
CONDITIONS: Final = (
    *(Condition(game, f"{PLAYERS[game].what}; no setting at all", {}) for game in ROUNDS),
    *(Condition(f"{game}, {BY_HAND}", f"the same model, {BY_HAND}", {"learner": STEADIER}) for game in ROUNDS),
)


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    game = condition.name.partition(",")[0]
    nodes = {"learns": taught_model(game, seed).name}
    return run_plan(
        "turns", condition, seed, min(rounds, ROUNDS[game]), nodes=nodes, tasks=(game,), measuring=MEASURING
    )


EXPERIMENT: Final = Experiment(
    name="turns", description=__doc__, conditions=CONDITIONS, plan=plan, rounds=max(ROUNDS.values())
)
Results = Mapping[str, Sequence[RunResult]]


def success(run: RunResult, rounds: int, *, greedy: bool = False) -> float:
    measured = run.nodes[0].measured(rounds)
    (value,) = (measured.greedy if greedy else measured.sampled).values()
    return value


def after(run: RunResult, *, greedy: bool = False) -> float:
    return success(run, run.plan.rounds, greedy=greedy)


def gain(runs: Sequence[RunResult], *, greedy: bool = False) -> Estimate:
    """Returns by how much success grew, paired by seed."""
    return over_seeds(runs, lambda run: after(run, greedy=greedy) - success(run, 0, greedy=greedy))


def first_and_last_rewards(run: RunResult) -> tuple[float, float]:
    """Returns the mean reward of the own completions of the first and of the last ``WINDOW`` updates."""
    rewards = run.nodes[0].reward
    return statistics.fmean(rewards[:WINDOW]), statistics.fmean(rewards[-WINDOW:])


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        "As shipped, with 4 completions a group and the learning rate that the node finds, and with two settings by "
        f"hand. Success is the mean reward of {MEASURING.prompts} held-out episodes; sampled is at temperature 1. ± is "
        "the 95 % interval over seeds (Student's t); each seed has a model of its own, whose lessons it drew."
    )
    written = EXPERIMENT.page("What a small model learns alone in conversations", intro, results, command)
    rows = [
        [
            game,
            str(runs[0].plan.rounds),
            over_seeds(runs, lambda r: success(r, 0)).text(2),
            over_seeds(runs, after).text(2),
            gain(runs).text(2),
            over_seeds(runs, lambda r: success(r, 0, greedy=True)).text(2),
            over_seeds(runs, lambda r: after(r, greedy=True)).text(2),
            gain(runs, greedy=True).text(2),
            " → ".join(over_seeds(runs, lambda r: first_and_last_rewards(r)[end]).text(2) for end in (0, 1)),  # noqa: B023
        ]
        for game, runs in results.items()
    ]
    header = (
        "game | updates | sampled, before | after | gain | greedy, before | after | gain | "
        f"reward in training, first and last {WINDOW} updates"
    )
    written.section("Results", table(header.split(" | "), rows))
    seeds = [
        [game, str(run.seed), *(", ".join(f"{value:.2f}" for value in of_run) for of_run in course(run))]
        for game, runs in results.items()
        for run in runs
    ]
    written.parts += [
        f"Success at the {MEASURING.times + 1} measurements, seed by seed:",
        table(["game", "seed", "sampled", "greedy"], seeds),
    ]
    for greedy, kind in ((False, "sampled"), (True, "greedy")):
        lines = [curve(game, shares(runs[0]), [course(run)[greedy] for run in runs]) for game, runs in results.items()]
        title = f"Success on held-out episodes, {kind}"
        svg = line_plot(title, lines, x_label="% of the updates", y_label="success", y_range=(0.0, 1.0))
        written.plot(f"-{kind}", title, svg)
    return written


def course(run: RunResult) -> tuple[list[float], list[float]]:
    """Returns sampled and greedy success at each measurement."""
    at = run.plan.measure_at
    return [success(run, each) for each in at], [success(run, each, greedy=True) for each in at]


def shares(run: RunResult) -> list[float]:
    return [100 * each / run.plan.rounds for each in run.plan.measure_at]


def figures(results: Results, rounds: int) -> list[Figure]:
    return [
        Figure(f"{game}: gain of success, {kind}", gain(runs, greedy=greedy).mean, "", "higher", "> 0")
        for game, runs in results.items()
        for greedy, kind in ((False, "sampled"), (True, "greedy"))
    ]


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
