"""Does a small model learn conversations alone? A walk on the smallest grid, by the node's own learner.

    python -m scripts.experiments.turns [--rounds 40] [--seed 0] [--json]

A model of characters is first taught the form alone: it imitates a walker who takes any of the open steps. Then a
learner trains it as ``starling up`` does, with scoring workers and checkpoints, and no peer. Success is the mean reward
of held-out episodes, before, between and after: the length of a shortest way as a part of the steps taken.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import torch

from node.configuration import Config
from node.engines.torch import TorchEngine
from node.environments.conversation import ConversationTask
from node.evaluation.evaluation import mean_rewards
from node.learner.assembly.loading import assembled
from node.learner.loop import Learner
from node.learner.objective.forward import Network
from node.tasks.registry import BUILT_IN_TASKS
from node.tasks.scorer import Scorer
from node.tasks.split import Part, held_out_prompts, training_prompt
from scripts.experiments.harness.game_models import SEEDS, Lesson, teach
from scripts.experiments.models import LEARNING_RATE, MODELS_FOLDER, SHAPE

GAME: Final = "grid:tiny"
ALPHABET: Final = "0123456789 nswe?\n"
CONTEXT: Final = 160
TEACHING_EPISODES: Final = 2000
TEACHING_STEPS: Final = 200
TEACHING_BATCH: Final = 32
EPISODES: Final = 200
MEASURED_TIMES: Final = 4
LEARNING: Final = {"foreign_groups": 0, "completions": 8, "learning_rate": 2e-3}


def walk(task: ConversationTask, draws: Random, aimless: float) -> Lesson:
    """Returns the first text of a training episode, and each step with what stands before it: a shortest way, or, with
    a chance of ``aimless``, any of the open steps each time."""
    prompt = training_prompt(task, draws.randrange(SEEDS))
    episode, seen, before = task.environment.begin(prompt.ref), prompt.text, ""
    way = task.example(prompt.ref.seed) or []
    lost = aimless >= 1 or draws.random() < aimless
    turns: list[tuple[str, str]] = []
    for number in range(task.environment.max_turns):
        step = draws.choice(seen.split()[-1]) if lost else way[number]
        turns.append((before, step))
        turn = episode.act(step)
        if turn.done:
            break
        seen, before = turn.observation, f"\n{turn.observation}\n"
    return prompt.text, turns


def taught_model(seed: int, aimless: float = 1.0, alphabet: str = ALPHABET, **changes: int) -> Path:
    """Returns the folder of the model that knows the form of the game, after making it where it is missing. ``aimless``
    is the share of the walks that it is taught which lead nowhere; ``changes`` are of the network's shape."""
    task = BUILT_IN_TASKS[GAME]
    assert isinstance(task, ConversationTask)
    shape = {**SHAPE, "max_position_embeddings": CONTEXT, **changes}
    teaching = [TEACHING_EPISODES, TEACHING_STEPS, TEACHING_BATCH, LEARNING_RATE]
    recipe = [seed, GAME, task.config_hash.hex(), alphabet, teaching, shape, *([aimless] if aimless < 1 else [])]
    folder = MODELS_FOLDER / f"turns-{hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]}"
    if (folder / "tokenizer.json").is_file():
        return folder
    draws = Random(seed)
    walks = [walk(task, draws, aimless) for _ in range(TEACHING_EPISODES)]
    teach(folder, alphabet, shape, lambda: draws.sample(walks, TEACHING_BATCH), seed=seed, steps=TEACHING_STEPS)
    return folder


def success(learner: Learner, scorer: Scorer, temperature: float) -> float:
    """Returns the mean reward of ``EPISODES`` held-out episodes."""
    tasks, policy = {GAME: BUILT_IN_TASKS[GAME]}, learner.policy
    return mean_rewards(
        policy.tokens, TorchEngine(policy, rows=EPISODES, seed=0), scorer, tasks,
        held_out_prompts(tasks, Part.TEST, EPISODES),
        samples=1, temperature=temperature, seed=0, context=Network.of(policy.model).context,
    )[GAME]  # fmt: skip


def trained(model: Path, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Returns success and processor seconds after 0, …, ``rounds`` rounds."""
    config = Config.model_validate(
        {
            "name": "turns",
            "seed": seed,
            "policy": {"model": str(model), "device": "cpu", "dtype": "float32"},
            "tasks": {"names": [GAME]},
            "swarm": {"lan_discovery": False},
            "learner": LEARNING,
            "evaluation": {"every_rounds": 0},
        }
    )
    measured = []
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scorer = stack.enter_context(Scorer(config.tasks))
        learner = stack.enter_context(assembled(home, config, scorer, lambda event: None, time.monotonic()))
        due = {round(rounds * part / MEASURED_TIMES) for part in range(MEASURED_TIMES + 1)}
        used = 0.0
        for number in range(rounds + 1):
            if number in due:
                sampled, greedy = (success(learner, scorer, temperature) for temperature in (1.0, 0.0))
                row = {"round": number, "sampled": sampled, "greedy": greedy, "cpu_seconds": round(used, 1)}
                measured.append(row)
                print(f"round {number:3}: sampled {sampled:.2f}, greedy {greedy:.2f}", file=sys.stderr, flush=True)
            began = time.process_time()
            if number < rounds:
                learner.round()
            used += time.process_time() - began
        learner.close()
    return measured


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    began = time.process_time()
    measured = trained(taught_model(options.seed), options.rounds, options.seed)
    before, after = measured[0], measured[-1]
    error = math.sqrt(0.25 / EPISODES)
    if options.json:
        print(json.dumps({"game": GAME, "episodes": EPISODES, "measured": measured}))
        return
    print(f"{GAME}, {EPISODES} held-out episodes, standard error at most {error:.3f}")
    print(f"before {before['sampled']:.3f} (greedy {before['greedy']:.3f})")
    print(f"after {options.rounds} rounds {after['sampled']:.3f} (greedy {after['greedy']:.3f})")
    print(f"{time.process_time() - began:.0f} s of this process, {after['cpu_seconds']:.0f} s of them in rounds")


if __name__ == "__main__":
    main()
