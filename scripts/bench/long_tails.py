"""Rounds where a few completions are long: what over-provisioning and generation ahead of the learner bring.

A Qwen3 shape of 0.8 M parameters with seeded random weights, whose completions end at random, after 100 tokens in the
mean and 512 at most; 16 groups of 4, 64 rows. Real learners on one machine, each alone; rewards are computed in place.

  overprovision  completions learnt from in a second of generating, against waiting for the longest
  ahead          rounds a second with ``max_staleness`` 1 against 0, on the same number of cores: both threads
                 together may use no more of them than the one that does all in turn

Contenders take turns, round after round, after two rounds each that are not counted.

    python scripts/bench/long_tails.py [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).resolve().parent)]

from node.compute_environment import compute_environment  # noqa: E402

os.environ |= compute_environment(os.environ)  # as a node starts its learner; read when torch is imported

import torch  # noqa: E402
from engine import save_model  # noqa: E402
from report import Figure, add_json_flag, report  # noqa: E402
from transformers.utils import logging as transformers_logging  # noqa: E402

from node.configuration import Config, EngineSection, LearnerSection, PolicySection  # noqa: E402
from node.engines.torch import TorchEngine  # noqa: E402
from node.events import RoundDone  # noqa: E402
from node.learner.foreign.intake import RolloutIntake  # noqa: E402
from node.learner.generation.schedule import needs_own_weights  # noqa: E402
from node.learner.loop import Learner  # noqa: E402
from node.learner.optimizer import MasterAdamW  # noqa: E402
from node.learner.persistence import LearnerState  # noqa: E402
from node.policy.policy import Policy  # noqa: E402
from node.tasks.scorer import Scores  # noqa: E402
from node.tasks.task import Prompt  # noqa: E402
from protocol.messages import PromptRef  # noqa: E402

LONGEST: Final = 512
ALONE: Final = "in turn"
CONTENDERS: Final[dict[str, dict[str, Any]]] = {
    ALONE: {},
    "overprovision 0.25": {"overprovision": 0.25},
    "overprovision 0.5": {"overprovision": 0.5},
    "overprovision 1": {"overprovision": 1.0},
    "ahead": {"max_staleness": 1},
    "ahead, overprovision 0.5": {"max_staleness": 1, "overprovision": 0.5},
}


class ParityTask:
    """Wants an even number of characters, which half of all completions have."""

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
class Contender:
    learner: Learner
    threads: int
    rounds: list[RoundDone] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, rounds: int) -> None:
        torch.set_num_threads(self.threads)
        until, began = self.learner.state.round + rounds, time.perf_counter()
        self.learner.run(lambda: "measured" if self.learner.state.round >= until else None)
        self.seconds += time.perf_counter() - began

    def forget(self) -> None:
        self.rounds.clear()
        self.seconds = 0.0


def contender(folder: Path, changes: dict[str, Any], threads: int) -> Contender:
    policy = Policy.load(PolicySection(model=str(folder), device="cpu", dtype="float32"), seed=0)
    section = LearnerSection(own_groups=16, completions=4, foreign_groups=0, learning_rate=1e-6, **changes)
    config = Config(name="bench", learner=section, engine=EngineSection(rows=64))
    task, rounds = ParityTask(), list[RoundDone]()
    engine = TorchEngine(policy, rows=64, seed=0, owns_weights=needs_own_weights(config))
    learner = Learner(
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
    return Contender(learner, shared, rounds)


def figures_of(measured: dict[str, Contender]) -> list[Figure]:
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    add_json_flag(parser)
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        save_model(Path(temporary), eos_in_reach=True)
        measured = {
            name: contender(Path(temporary), changes, arguments.threads) for name, changes in CONTENDERS.items()
        }
        for each in measured.values():
            each.run(2)
            each.forget()
        at_once = max(1, arguments.rounds // 3)
        for _ in range(3):
            for each in measured.values():
                each.run(at_once)
    report("long_tails", figures_of(measured), as_json=arguments.json)


if __name__ == "__main__":
    main()
