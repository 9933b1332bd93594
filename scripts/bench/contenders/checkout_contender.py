"""The engine and the learner of the checkout in which this runs: ``python -c`` with that folder as working directory.

For each line of its input, the name of a piece of work, it does that work once and prints processor and wall seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from node.configuration import LearnerSection, PolicySection, TasksSection
from node.engines.torch import TorchEngine
from node.learner.generation.generation import Generation, round_plan
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scorer

GRID = TasksSection(names=("grid:tiny",))


def conversations(scorer: Scorer) -> Callable[[], object]:
    """Returns a round's conversations of wren in grid:tiny, 16 groups of 8, whose environments one worker plays."""
    policy, learner = Policy.load(PolicySection(model="builtin:wren")), LearnerSection(own_groups=16, completions=8)
    tasks, engine = load_tasks(GRID), TorchEngine(policy, rows=128, seed=0)
    parts = policy.tokens, scorer, learner, 1.0, policy.base.config.max_position_embeddings
    generation = Generation(engine, tasks, *parts)
    plan = round_plan(learner, list(tasks), "checkouts", 0)

    def generate() -> None:
        generation.run(plan, ())
        engine.release()

    return generate


def works(batch: dict[str, Any], folder: Path, scorer: Scorer) -> dict[str, Callable[[], object]]:
    from scripts.bench.contenders.learner_step_contender import starling
    from scripts.bench.engine import starling_round, tiny_workloads

    rounds = {f"engine, {work.name}": starling_round(work) for work in tiny_workloads(folder)}
    return {**rounds, "conversations": conversations(scorer), "learner, four steps": lambda: starling(batch, 2)}


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    batch = json.loads(Path(sys.argv[2]).read_text())
    with tempfile.TemporaryDirectory() as temporary, Scorer(GRID) as scorer:
        found = works(batch, Path(temporary), scorer)
        for run in found.values():
            run()
        print("ready", flush=True)
        for line in sys.stdin:
            cpu, wall = time.process_time(), time.perf_counter()
            found[line.strip()]()
            print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


main()
