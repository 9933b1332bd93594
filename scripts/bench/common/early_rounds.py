"""Rounds of a learner with an engine in a process of its own: learning begins beside the engine, or waits for its end.

A Qwen3 shape with seeded random weights, whose answers have 1 to ``ANSWER_TOKENS`` tokens, as it ends them by chance;
a reward that half of all answers get, so that every group teaches. The rounds of one learner take turns: with early
learning and without, each of the same prompts and seeds from equal weights, since the learning rate is next to nothing.

Beside other programs the clock of the wall says little. So learner and engine have quotas of processor time, and a
multiple of others' share: ``apart`` gives each a quota of its own, as two devices have; otherwise both share one of
twice that. Each computes with one thread. Linux and root only.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM

from node.compute_environment import compute_environment
from node.configuration import Config, EngineSection, LearnerSection, PolicySection
from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_setup import EngineSetup
from node.engines.process.process_engine import ProcessEngine
from node.engines.torch import TorchEngine
from node.events import RoundDone
from node.learner.assembly.wiring import learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.loop import Learner
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.tasks.scorer import Scores
from node.tasks.task import Prompt
from protocol.messages import PromptRef
from scripts.bench.common.processor_share import processor_shares
from scripts.bench.common.reporting import Figure
from scripts.bench.common.small_qwen3 import small_qwen3

PROMPT_TOKENS: Final = 32
ANSWER_TOKENS: Final = 96
GROUPS: Final = 16
COMPLETIONS: Final = 4
LAYERS: Final = 4
HIDDEN: Final = 256
PASS_TOKENS: Final = 1024
QUOTA: Final = 0.3  # of a processor


class EvenLetters:
    """Any text as a prompt; an answer is right where its characters add up to an even number."""

    name, version, config_hash, max_new_tokens = "even", 1, bytes(16), ANSWER_TOKENS

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed)

    def prompt(self, ref: PromptRef) -> Prompt:
        letters = [chr(0x21 + (ref.seed * 31 + place * place * 7) % 90) for place in range(PROMPT_TOKENS)]
        return Prompt(ref, "".join(letters), "", {})

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(sum(map(ord, text)) % 2 == 0) for text in completions]

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        """As the scorer does it, in this process."""
        rewards = [self.rewards(self.prompt(ref), texts) for ref, texts in items]
        return [Scores(tuple(each), (None,) * len(each)) for each in rewards]


def write_model(folder: Path, vocabulary: int) -> None:
    """Replaces the model in ``folder``, whose tokenizer stays."""
    torch.manual_seed(0)
    config = small_qwen3(
        vocabulary=vocabulary, layers=LAYERS, hidden=HIDDEN, heads=4, kv_heads=2,
        positions=PROMPT_TOKENS + ANSWER_TOKENS, eos_id=1,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]


def measure_early(model: Path, vocabulary: int, rounds: int, rows: int, *, apart: bool) -> list[Figure]:
    """``model``: a folder with a tokenizer of single characters."""
    write_model(model, vocabulary)
    torch.set_num_threads(1)
    quotas = [QUOTA, QUOTA] if apart else [2 * QUOTA]
    seconds: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="early-") as temporary, processor_shares(quotas) as shares:
        learner, engine, events = _learner(model, Path(temporary), rows)
        try:
            learner.round()
            assert isinstance(engine._child, EngineChild)
            with shares[0].holding(os.getpid()), shares[-1].holding(engine._child.pid):
                first = learner.state.round
                for number in range(2 * rounds):
                    engine.beside = number % 2 == 1
                    learner.state.round = first + number // 2
                    learner.round()
                    seconds[engine.beside].append(_seconds_of(events))
                    name = "beside" if engine.beside else "in turn"
                    print(name, seconds[engine.beside][-1], file=sys.stderr, flush=True)
        finally:
            learner.close()
            engine.close()
    return _figures("apart" if apart else "together", rows, seconds)


def _learner(model: Path, folder: Path, rows: int) -> tuple[Learner, ProcessEngine, list[RoundDone]]:
    section = PolicySection(model=str(model), device="cpu", dtype="float32", adapter_rank=0, four_bit=False)
    learning = LearnerSection(
        own_groups=GROUPS, completions=COMPLETIONS, foreign_groups=0, learning_rate=1e-12, batch_tokens=PASS_TOKENS
    )
    config = Config(name="bench", policy=section, learner=learning, engine=EngineSection(rows=rows))
    policy = Policy.load(section)
    setup = EngineSetup(
        socket=str(folder / "engine.sock"),
        files=str(folder),
        policy=section.model_dump(mode="json"),
        seed=0,
        merge_adapters=True,
    )
    engine = ProcessEngine(
        policy,
        lambda: EngineChild(setup, environment=compute_environment({**os.environ, "OMP_NUM_THREADS": "1"})),
        lambda: TorchEngine(policy, rows=rows, seed=0, owns_weights=True),
        rows=rows,
        seed=0,
        files=folder,
        report=lambda change: None,
    )
    task, events = EvenLetters(), list[RoundDone]()
    learner = learner_of(
        config, policy, {task.name: task}, engine, task,
        RolloutIntake(None, {task.name: task}, learning, time.time),
        MasterAdamW(policy.trainable(), learning), LearnerState(),
        report=lambda event: events.append(event) if isinstance(event, RoundDone) else None,
        clock=time.time,)  # fmt: skip
    return learner, engine, events


def _seconds_of(events: list[RoundDone]) -> dict[str, float]:
    phases = events[-1].phases
    found = {"generate": phases.generate, "learn": phases.learn}
    return found | {"round": sum(getattr(phases, name) for name in phases.__struct_fields__)}


def _figures(where: str, rows: int, seconds: dict[bool, list[dict[str, float]]]) -> list[Figure]:
    title = f"early: {where}, {rows} rows"
    figures = []
    for early, name in ((False, "in turn"), (True, "beside")):
        for phase in ("generate", "learn", "round"):
            median = statistics.median(each[phase] for each in seconds[early])
            figures.append(Figure(f"{title}: {name}, {phase}", median, "s", "lower"))
    pairs = zip(seconds[False], seconds[True], strict=True)
    ratio = statistics.median(one["round"] / other["round"] for one, other in pairs)
    print(f"{title}: in turn / beside × {ratio:.3f}", file=sys.stderr, flush=True)
    return [*figures, Figure(f"{title}: in turn / beside", ratio, "×", "higher")]
