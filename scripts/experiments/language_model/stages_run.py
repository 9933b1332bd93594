"""One run of ``stages.py``: one small language model in three stages, whose hidden states cross in one way.

The stages: embedding and first layer; second layer; last norm and head. Of one seed every condition has the same
language, texts and base. A model that starts from the base was trained whole; one that starts anew is in stages from
its first step.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import torch
from msgspec import Struct

from scripts.experiments.harness.crossings import Crosses, Crossing
from scripts.experiments.language_model.averaging_run import (
    BASE_BATCH,
    BASE_RATE,
    BASE_STEPS,
    FIRST_TEXT,
    HELD_OUT,
    HELD_OUT_TEXT,
    base_model,
    texts,
)
from scripts.experiments.language_model.language import Language
from scripts.experiments.language_model.replicas import (
    LAYERS,
    Replicas,
    held_out_loss,
    initial,
    shapes,
)
from scripts.experiments.language_model.subspace_weights import SubspaceReplica

VERSION: Final = 1  # to be raised when the code of a run changes what it measures
MEASURE_TIMES: Final = 10


class StagesPlan(Struct, frozen=True):
    """One condition with one seed."""

    experiment: str
    condition: str
    seed: int
    rounds: int  # optimizer steps
    batch: int  # documents a step
    learning_rate: float
    width: int
    from_base: bool
    crosses: Crosses
    in_subspace: bool = False  # the weights, by ``crosses.share``, and nothing is lost where they cross

    harness: ClassVar[str] = "scripts.experiments.language_model.stages_run"

    @property
    def result_type(self) -> type[StagesResult]:
        return StagesResult

    @property
    def key(self) -> str:
        base = [BASE_STEPS, BASE_BATCH, BASE_RATE, HELD_OUT, MEASURE_TIMES, shapes(self.width)]
        canonical = json.dumps([VERSION, msgspec.to_builtins(self), base], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


class StagesLevel(Struct, frozen=True):
    """Held-out loss, nats a token, after ``step`` steps."""

    step: int
    loss: float  # in stages, as it is trained
    whole_loss: float  # of the same weights without a cut


class StagesResult(Struct, frozen=True):
    key: str
    condition: str
    seed: int
    seconds: float
    cpu_seconds: float
    levels: list[StagesLevel]  # the first after the first step
    token_bytes: float  # at one cut, there and back
    plan: StagesPlan


def execute(plan: StagesPlan, models: Path, is_orphaned: Callable[[], bool] = lambda: False) -> StagesResult:
    """Runs ``plan`` on one thread. Raises ``InterruptedError`` once ``is_orphaned``, when no process waits for it."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    base = base_model(plan.seed, models, plan.width) if plan.from_base else initial(plan.seed, plan.width)
    began, cpu_began = time.monotonic(), time.process_time()
    language = Language(plan.seed)
    held_out = torch.from_numpy(language.documents(HELD_OUT_TEXT, HELD_OUT))
    exact = Crosses("exact")
    crossings = [Crossing(exact if plan.in_subspace else plan.crosses) for _ in range(LAYERS)]

    def cut(layer: int, x: torch.Tensor) -> torch.Tensor:
        return crossings[layer](x)

    model: Replicas
    if plan.in_subspace:
        model = SubspaceReplica(plan.seed, plan.width, plan.crosses.share, learning_rate=plan.learning_rate)
    else:
        model = Replicas(base, 1, learning_rate=plan.learning_rate, cut=cut)
    levels = list[StagesLevel]()
    every = max(1, plan.rounds // MEASURE_TIMES)
    for step, tokens in enumerate(texts(language, FIRST_TEXT, plan.rounds, 1, plan.batch), start=1):
        if is_orphaned():
            raise InterruptedError("the experiment that this run belongs to has ended")
        model.step(tokens)
        if step == 1 or step % every == 0 or step == plan.rounds:
            weights = model.replica(0)
            levels.append(StagesLevel(step, held_out_loss(weights, held_out, cut), held_out_loss(weights, held_out)))
    token_bytes = 2 * plan.crosses.token_bytes(plan.width) if plan.in_subspace else crossings[0].bytes_of_a_token
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
    return StagesResult(plan.key, plan.condition, plan.seed, seconds, cpu_seconds, levels, token_bytes, plan)
