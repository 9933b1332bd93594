"""Rounds where a few completions are long: the gain of over-provisioning and of generation ahead of the learner.

A Qwen3 shape of 0.8 M parameters with seeded random weights, whose completions end at random, after 100 tokens on
average and 512 at most; 16 groups of 4, 64 rows. Real learners on one machine, each alone; rewards are computed in the
same process.

  overprovision  completions learnt from in a second of generation, against a learner that waits for the longest
  ahead          rounds a second with ``max_staleness`` 1 against 0, on the same number of cores: both threads
                 together may use no more of them than the one thread of a learner that takes turns

Contenders take turns, round after round, after two rounds each that are not counted.

    python -m scripts.bench.long_tails [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from transformers.utils import logging as transformers_logging

from node.configuration import Config, EngineSection, LearnerSection, PolicySection
from node.engines.torch import TorchEngine
from node.events import RoundDone
from node.learner.assembly.wiring import learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.schedule import needs_own_weights
from node.learner.loop import Learner
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.tasks.scorer import Scores
from node.tasks.task import Prompt
from protocol.messages import PromptRef
from scripts.bench.common.compute_process import ensure_compute_environment
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.engine import save_model

LONGEST: Final = 512
IN_TURN: Final = "in turn"
CONTENDERS: Final[dict[str, dict[str, Any]]] = {
    IN_TURN: {},
    "overprovision 0.25": {"overprovision": 0.25},
    "overprovision 0.5": {"overprovision": 0.5},
    "overprovision 1": {"overprovision": 1.0},
    "ahead": {"max_staleness": 1},
    "ahead, overprovision 0.5": {"max_staleness": 1, "overprovision": 0.5},
}


class ParityTask:
    """Rewards an even number of characters, which half of all completions have."""

    name, version, max_new_tokens, config_hash = "parity", 1, LONGEST, b"parity" + bytes(10)

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % 10_000)

    def prompt(self, ref: PromptRef) -> Prompt:
        return Prompt(ref, f"{ref.seed:04d}", None, {})

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(len(text) % 2 == 0) for text in completions]

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        return [Scores(tuple(self.rewards(self.prompt(ref), texts)), (None,) * len(texts)) for ref, texts in items]


@dataclass
class LearnerContender:
    """A learner, its rounds and the seconds that they took."""

    learner: Learner
    threads: int
    rounds: list[RoundDone] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, rounds: int) -> None:
        torch.set_num_threads(self.threads)
        until, began = self.learner.state.round + rounds, time.perf_counter()
        self.learner.run(lambda: "measured" if self.learner.state.round >= until else None)
        self.seconds += time.perf_counter() - began

    def reset(self) -> None:
        self.rounds.clear()
        self.seconds = 0.0


def contender(folder: Path, changes: dict[str, Any], threads: int) -> LearnerContender:
    policy = Policy.load(PolicySection(model=str(folder), device="cpu", dtype="float32"))
    section = LearnerSection(own_groups=16, completions=4, foreign_groups=0, learning_rate=1e-6, **changes)
    config = Config(name="bench", learner=section, engine=EngineSection(rows=64))
    task, rounds = ParityTask(), list[RoundDone]()
    engine = TorchEngine(policy, rows=64, seed=0, owns_weights=needs_own_weights(config))
    learner = learner_of(
        config,
        policy,
        {task.name: task},
        engine,
        task,
        RolloutIntake(None, {task.name: task}, section, time.time),
        MasterAdamW(policy.trainable(), section),
        LearnerState(),
        report=lambda event: rounds.append(event) if isinstance(event, RoundDone) else None,
        clock=time.time,
    )
    shared = max(1, threads // 2) if section.max_staleness else threads
    return LearnerContender(learner, shared, rounds)


def figures_of(measured: dict[str, LearnerContender]) -> list[Figure]:
    figures = []
    for name, each in measured.items():
        groups = sum(r.own_groups for r in each.rounds)
        generating = sum(r.phases.generate for r in each.rounds)
        figures.append(Figure(f"{name}: groups a second", groups / each.seconds, "/s", "higher"))
        if "ahead" not in name:
            figures.append(Figure(f"{name}: groups a second of generating", groups / generating, "/s", "higher"))
        staleness = sum(r.staleness_mean or 0.0 for r in each.rounds) / len(each.rounds)
        figures.append(Figure(f"{name}: mean staleness", staleness, "versions", "lower"))
        figures.append(Figure(f"{name}: most", max(r.staleness_max or 0 for r in each.rounds), "versions", "lower"))
    return figures


def main() -> None:
    ensure_compute_environment()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    add_json_flag(parser)
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    with tempfile.TemporaryDirectory() as temporary:
        save_model(Path(temporary))
        measured = {
            name: contender(Path(temporary), changes, arguments.threads) for name, changes in CONTENDERS.items()
        }
        for each in measured.values():
            each.run(2)
            each.reset()
        at_once = max(1, arguments.rounds // 3)
        for _ in range(3):
            for each in measured.values():
                each.run(at_once)
    report("long_tails", figures_of(measured), as_json=arguments.json)


if __name__ == "__main__":
    main()
