"""Is an action credited better with what its own turn and later ones earned, or with the whole episode's reward?

    python -m scripts.experiments.credit [--rounds 30] [--seeds 3] [--only PATTERN] [--jobs 1] [--json]

One node trains alone on one game. "episode": the advantage of an episode among those of its first text weighs on all of
its actions. "turn": action t is credited with what was earned from then on, against the mean of what the other episodes
earned from then on (``node.learner.objective.advantages``). Both games earn something in turns before the last one;
where none does, the two rules are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.experiment import (
    WINDOW,
    Condition,
    Experiment,
    Measuring,
    difference,
    mean_rewards,
    over_seeds,
    reward_plot,
    run_plan,
)
from scripts.experiments.harness.game_models import GameModel, ensure
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.models import MODELS_FOLDER
from scripts.experiments.reports.report_document import Document, table

ROUNDS: Final = 30
MEASURING: Final = Measuring(times=1, prompts=200, samples=1)
TEACHING_STEPS: Final = 200
GAMES: Final[Mapping[str, float]] = {
    "sorting_names:tiny": 0.3,
    "hidden_word:tiny": 0.2,
}  # share of lessons that go well
EPISODE, TURN = "episode", "turn"
LEARNING: Final = {"foreign_groups": 0, "completions": 8, "learning_rate": 2e-3}
METHODS: Final = {EPISODE: "group", TURN: "turn"}


def name_of(game: str, method: str) -> str:
    return f"{method}, {game}"


CONDITIONS: Final = tuple(
    Condition(
        name_of(game, method),
        f"credit by {method} on {game}",
        {"learner": LEARNING, "objective": {"research": {"advantage": advantage}}},
    )
    for game in GAMES
    for method, advantage in METHODS.items()
)


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    game = condition.name.partition(", ")[2]
    model = GameModel(game.partition(":")[0], seed, ((game, 1.0, GAMES[game]),), TEACHING_STEPS)
    nodes = {"learns": ensure(model, MODELS_FOLDER)}
    return run_plan("credit", condition, seed, rounds, nodes=nodes, tasks=(game,), measuring=MEASURING)


EXPERIMENT: Final = Experiment(name="credit", description=__doc__, conditions=CONDITIONS, plan=plan, rounds=ROUNDS)
Results = Mapping[str, Sequence[RunResult]]


def success(run: RunResult, rounds: int, *, greedy: bool = False) -> float:
    measured = run.nodes[0].measured(rounds)
    (value,) = (measured.greedy if greedy else measured.sampled).values()
    return value


def reward(run: RunResult) -> float:
    return sum(run.nodes[0].reward)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"{LEARNING['completions']} completions a group, 32 groups an update, learning rate "
        f"{LEARNING['learning_rate']:g}, one node alone. Success is the mean reward of {MEASURING.prompts} held-out "
        "episodes; ± is the 95 % interval over seeds (Student's t)."
    )
    written = EXPERIMENT.page("Credit by episodes or by turns", intro, results, command)
    rows = [
        [
            name,
            over_seeds(runs, lambda r: success(r, 0)).text(),
            over_seeds(runs, lambda r: success(r, rounds)).text(),
            over_seeds(runs, lambda r: success(r, rounds, greedy=True)).text(),
            over_seeds(runs, reward).text(2),
        ]
        for name, runs in results.items()
    ]
    header = f"condition | success before | after {rounds} updates | greedy | cumulative reward"
    written.section("Results", table(header.split(" | "), rows))
    for game in GAMES:
        both = name_of(game, TURN), name_of(game, EPISODE)
        more = difference(results, *both, lambda r: success(r, rounds))
        gained = difference(results, *both, reward)
        if more is not None and gained is not None:
            written.parts.append(
                f"- {game}, by turns less by episodes, paired by seed: success {more.text()}, cumulative reward "
                f"{gained.text(2)}."
            )
        shown = {name: results[name] for name in both if name in results}
        if shown:
            title = f"Sampled reward on {game}, mean of {WINDOW} updates"
            written.plot(f"-{game.partition(':')[0]}", title, reward_plot(title, shown, rounds, mean_rewards))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    found: list[Figure] = []
    values: dict[str, Callable[[RunResult], float]] = {
        "success": lambda run: success(run, rounds),
        "cumulative reward": reward,
    }
    for game in GAMES:
        for what, value in values.items():
            more = difference(results, name_of(game, TURN), name_of(game, EPISODE), value)
            if more is not None:
                name = f"{game}: {what} by turns, less by episodes"
                found.append(Figure(name, more.mean, "", "higher", "> 0"))
                found.append(Figure(f"{name}, half of its interval", more.half_width, "", "lower"))
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
