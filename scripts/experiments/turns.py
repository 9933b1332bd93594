"""Does a small model learn conversations alone? One node, one game, no peer.

    python -m scripts.experiments.turns [--rounds 160] [--seeds 3] [--only PATTERN] [--jobs 1] [--json]

Each model is first taught the form of its game by a scripted player (``scripts.experiments.harness.players``). Then the
node's own learner trains it, ``ROUNDS`` updates of each game, or ``--rounds`` where that is less. Success is the mean
reward of held-out episodes, whose first texts neither the player nor the learner saw: before, between and after; and,
beside it, that of episodes whose first texts both of them see.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from node.learner.allocation.allocator import PROMPT_SEEDS
from node.tasks.split import Part, held_out_prompts, part_of
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
from scripts.experiments.harness.game_models import game
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.harness.players import PLAYERS, TaughtModel
from scripts.experiments.reports.intervals import Estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table

ROUNDS: Final = {"grid:tiny": 60, "guess_number:tiny": 160, "database": 120}
DRAWS: Final = 32 * ROUNDS["guess_number:tiny"]
FEWER_ROUNDS: Final = 40  # where only the beginning is looked at
MEASURING: Final = Measuring(times=5, prompts=200, samples=1, trained=200)
BY_HAND: Final = "8 completions, rate .001"
STEADIER: Final = {"completions": 8, "learning_rate": 1e-3}
AS_BEFORE: Final = "steps of any length"
GUESSING: Final = "guess_number:tiny"
MORE_GROUPS: Final = "128 groups"
NO_DIRECTION: Final = "advantages dealt out"
BEGINNINGS: Final = (  # of guessing alone
    Condition(
        f"{GUESSING}, {AS_BEFORE}, {NO_DIRECTION}",
        "as above, and each conversation has the advantages of any other of its group",
        {}, ablations=(AS_BEFORE, NO_DIRECTION),
    ),
    Condition(
        f"{GUESSING}, {AS_BEFORE}, {MORE_GROUPS}",
        "as above, with four times as many own groups an update",
        {"learner": {"own_groups": 128}}, ablations=(AS_BEFORE,),
    ),
)  # fmt: skip
CONDITIONS: Final = (
    *(Condition(game, f"{PLAYERS[game].what}; no setting at all", {}) for game in ROUNDS),
    *(
        Condition(
            f"{game}, {AS_BEFORE}",
            "the same model; the rate goes by a whole step alone, however much of it is taken",
            {},
            ablations=(AS_BEFORE,),
        )
        for game in ROUNDS
    ),
    *BEGINNINGS,
    *(Condition(f"{game}, {BY_HAND}", f"the same model, {BY_HAND}", {"learner": STEADIER}) for game in ROUNDS),
)


def model(condition: Condition, seed: int) -> TaughtModel:
    return TaughtModel(condition.name.partition(",")[0], seed)


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    learns = model(condition, seed)
    most = FEWER_ROUNDS if condition in BEGINNINGS else ROUNDS[learns.name]
    nodes, tasks = {"learns": learns.folder.name}, (learns.name,)
    return run_plan("turns", condition, seed, min(rounds, most), nodes=nodes, tasks=tasks, measuring=MEASURING)


EXPERIMENT: Final = Experiment(
    name="turns",
    description=__doc__,
    conditions=CONDITIONS,
    plan=plan,
    rounds=max(ROUNDS.values()),
    prepare=lambda condition, seed: model(condition, seed).ensure(),
)
Results = Mapping[str, Sequence[RunResult]]


KINDS: Final = ("sampled", "greedy", "trained")  # the last is sampled too, on first texts that are trained on


def success(run: RunResult, rounds: int, kind: str = "sampled") -> float:
    (value,) = getattr(run.nodes[0].measured(rounds), kind).values()
    return float(value)


def after(run: RunResult, kind: str = "sampled") -> float:
    return success(run, run.plan.rounds, kind)


def gain(runs: Sequence[RunResult], kind: str = "sampled") -> Estimate:
    """Returns by how much success grew, paired by seed."""
    return over_seeds(runs, lambda run: after(run, kind) - success(run, 0, kind))


def first_fall(run: RunResult, kind: str) -> float:
    """Returns by how much the least success in the first half of a run lies below that before."""
    half = [success(run, at, kind) for at in run.plan.measure_at if at <= run.plan.rounds / 2]
    return half[0] - min(half)


def first_and_last_rewards(run: RunResult) -> tuple[float, float]:
    """Returns the mean reward of the own completions of the first and of the last ``WINDOW`` updates."""
    rewards = run.nodes[0].reward
    return statistics.fmean(rewards[:WINDOW]), statistics.fmean(rewards[-WINDOW:])


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        "As shipped, with 4 completions a group and the learning rate that the node finds, and with something changed. "
        f"Success is the mean reward of {MEASURING.prompts} held-out episodes, or of as many whose first texts are "
        "trained on; sampled is at temperature 1. ± is the 95 % interval over seeds (Student's t); each seed has a "
        "model of its own, whose lessons it drew."
    )
    written = EXPERIMENT.page("What a small model learns alone in conversations", intro, results, command)
    rows = [
        [
            game,
            str(runs[0].plan.rounds),
            *(
                cell
                for kind in KINDS
                for cell in (
                    over_seeds(runs, lambda run: success(run, 0, kind)).text(2),  # noqa: B023
                    over_seeds(runs, lambda run: after(run, kind)).text(2),  # noqa: B023
                    gain(runs, kind).text(2),
                )
            ),
            " → ".join(over_seeds(runs, lambda r: first_and_last_rewards(r)[end]).text(2) for end in (0, 1)),  # noqa: B023
        ]
        for game, runs in results.items()
    ]
    header = (
        "game | updates | sampled, before | after | gain | greedy, before | after | gain | "
        "sampled, first texts trained on, before | after | gain | "
        f"reward in training, first and last {WINDOW} updates"
    )
    written.section("Results", table(header.split(" | "), rows))
    falls = [
        [game, *(over_seeds(runs, lambda run: first_fall(run, kind)).text(2) for kind in ("sampled", "trained"))]  # noqa: B023
        for game, runs in results.items()
    ]
    written.parts += [
        "How far success falls first: that before, less the least in the first half of the updates, sampled:",
        table(["game", "held-out first texts", "first texts trained on"], falls),
        f"First texts of {DRAWS} episodes, as many as guessing alone draws as shipped; those of the "
        f"{MEASURING.prompts} held-out episodes that measure here, and the share of these of its most frequent one:",
        table(["game", "first texts", "trained on", "behind the held-out episodes", "most frequent"], first_texts()),
    ]
    seeds = [
        [
            game,
            str(run.seed),
            *(", ".join(f"{value:.2f}" for value in of_run) for of_run in (course(run, k) for k in KINDS)),
        ]
        for game, runs in results.items()
        for run in runs
    ]
    written.parts += [
        f"Success at the {MEASURING.times + 1} measurements, seed by seed:",
        table(["game", "seed", "sampled", "greedy", "sampled, first texts trained on"], seeds),
    ]
    for kind in KINDS:
        lines = [curve(game, shares(runs[0]), [course(run, kind) for run in runs]) for game, runs in results.items()]
        title = f"Success on held-out episodes, {kind}" if kind != "trained" else "Success on first texts trained on"
        svg = line_plot(title, lines, x_label="% of the updates", y_label="success", y_range=(0.0, 1.0))
        written.plot(f"-{kind}", title, svg)
    return written


def course(run: RunResult, kind: str) -> list[float]:
    """Returns success at each measurement."""
    return [success(run, each, kind) for each in run.plan.measure_at]


def first_texts() -> list[list[str]]:
    """Returns how few first texts each game has, a row a game."""
    rows, draws = list[list[str]](), Random(0)
    for name in ROUNDS:
        task = game(name)
        drawn = {p.text: p for p in (task.prompt(task.ref(draws.randrange(PROMPT_SEEDS))) for _ in range(DRAWS))}
        trained = sum(part_of(prompt) is Part.TRAINING for prompt in drawn.values())
        (measured,) = held_out_prompts({name: task}, Part.TEST, MEASURING.prompts).values()
        counts = Counter(prompt.text for prompt in measured)
        most = counts.most_common(1)[0][1] / len(measured)
        rows.append([name, str(len(drawn)), str(trained), str(len(counts)), f"{most:.2f}"])
    return rows


def shares(run: RunResult) -> list[float]:
    return [100 * each / run.plan.rounds for each in run.plan.measure_at]


def figures(results: Results, rounds: int) -> list[Figure]:
    return [
        Figure(f"{game}: gain of success, {kind}", gain(runs, kind).mean, "", "higher", "> 0")
        for game, runs in results.items()
        for kind in KINDS
    ]


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
