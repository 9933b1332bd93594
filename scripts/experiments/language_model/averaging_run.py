"""One run of ``averaging.py``: replicas of one small language model, from a common base to the end, under one rule.

Every seed has its own language, base model and texts; the conditions of one seed share all three. A replica's texts are
the same under every rule, so that differences between conditions are paired by seed.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import msgspec
import torch
from msgspec import Struct
from safetensors.torch import load_file, save_file
from torch import Tensor

from node.averaging import noloco
from node.averaging.compressed import CompressedConstants
from scripts.experiments.language_model.averaging_liars import PairsWithLiar
from scripts.experiments.language_model.averaging_rules import (
    DILOCO,
    NOLOCO,
    Alone,
    CompressedPairs,
    DiLoCo,
    NoLoCo,
    ReplicaRule,
)
from scripts.experiments.language_model.language import TOKENS, Language
from scripts.experiments.language_model.replicas import WIDTH, Replicas, held_out_loss, initial, shapes
from scripts.experiments.language_model.update_sum import UpdateSum

VERSION: Final = 1  # to be raised when the code of a run changes what it measures
LIARS_VERSION: Final = 2  # the same, of runs with a liar alone
BASE_STEPS: Final = 300
BASE_BATCH: Final = 32
BASE_RATE: Final = 3e-3
HELD_OUT: Final = 300  # documents
MEASURE_TIMES: Final = 10
AWAY_STEPS: Final = 10  # outer steps
BASE_TEXT, HELD_OUT_TEXT, FIRST_TEXT = 1, 2, 3  # seeds of documents


class ReplicaPlan(Struct, frozen=True):
    """One condition with one seed."""

    experiment: str
    condition: str
    seed: int
    rounds: int  # inner steps
    rule: str
    settings: dict[str, Any]  # of the rule
    replicas: int
    batch: int  # documents a replica a step
    learning_rate: float
    decays: bool  # to a tenth, by half a cosine; else constant
    every: int  # H, inner steps
    away: float = 0.0  # the mean share of replicas that are absent; each stays so for ``AWAY_STEPS`` on average

    harness: ClassVar[str] = "scripts.experiments.language_model.averaging_run"

    @property
    def result_type(self) -> type[ReplicaResult]:
        return ReplicaResult

    @property
    def key(self) -> str:
        base = [BASE_STEPS, BASE_BATCH, BASE_RATE, HELD_OUT, MEASURE_TIMES, shapes()]
        constants = [asdict(each) for each in (DILOCO, NOLOCO)]
        if self.rule == "compressed":
            constants = [asdict(CompressedConstants(**self.settings))]
        if self.rule == "pairs_with_liar":
            constants.append({"version": LIARS_VERSION})
        shape = {"version": VERSION, "plan": msgspec.to_builtins(self), "base": base, "constants": constants}
        canonical = json.dumps(shape, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


class Level(Struct, frozen=True):
    """Held-out loss, nats a token, after ``step`` inner steps, right after an outer step."""

    step: int
    loss: float  # mean over the honest replicas
    loss_of_mean: float  # of the mean of all weights
    distance: float  # mean over the replicas of ‖θ - mean of all‖ / ‖mean of all‖


class ReplicaResult(Struct, frozen=True):
    key: str
    condition: str
    seed: int
    seconds: float
    cpu_seconds: float
    levels: list[Level]  # the first before the first step
    received_bytes: float  # by one replica in an exchange
    parameters: int
    plan: ReplicaPlan
    verdicts: dict[str, float] = {}  # on offers to honest replicas, where they judge


def rule_of(plan: ReplicaPlan, weights: dict[str, Tensor]) -> ReplicaRule:
    random = Random(f"pairs {plan.seed}")
    match plan.rule:
        case "alone":
            return Alone(weights, plan.replicas, random)
        case "diloco":
            return DiLoCo(weights, plan.replicas, random, replace(DILOCO, **plan.settings))
        case "noloco":
            return NoLoCo(weights, plan.replicas, random)
        case "compressed":
            return CompressedPairs(weights, plan.replicas, random, CompressedConstants(**plan.settings))
        case "update_sum":
            return UpdateSum(weights, plan.replicas, random, **plan.settings)
        case "pairs_with_liar":
            return PairsWithLiar(weights, plan.replicas, random, **plan.settings)
    raise ValueError(f"no rule is called {plan.rule!r}")


def base_model(seed: int, folder: Path, width: int = WIDTH) -> dict[str, Tensor]:
    """Returns the common base of one seed: made once, by one replica, and kept as a file."""
    recipe = json.dumps([VERSION, seed, BASE_STEPS, BASE_BATCH, BASE_RATE, shapes(width)])
    path = folder / f"language-{seed}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.safetensors"
    if not path.exists():
        alone = Replicas(initial(seed, width), 1, learning_rate=BASE_RATE)
        for tokens in texts(Language(seed), BASE_TEXT, BASE_STEPS, 1, BASE_BATCH):
            alone.step(tokens)
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{time.monotonic_ns()}.part")
        save_file({name: tensor.contiguous() for name, tensor in alone.replica(0).items()}, unfinished)
        unfinished.rename(path)
    return load_file(path)


def texts(language: Language, seed: int, steps: int, replicas: int, batch: int) -> Tensor:
    """Returns token ids, (steps, R, B, TOKENS)."""
    documents = language.documents(seed, steps * replicas * batch)
    return torch.from_numpy(documents).view(steps, replicas, batch, TOKENS)


def measured_steps(plan: ReplicaPlan) -> set[int]:
    """Returns the steps to measure: right after outer steps, evenly spread, the run's last one among them."""
    after = range(plan.every, plan.rounds + 1, plan.every)
    spread = max(1, len(after) // MEASURE_TIMES)
    return set(after[::-1][::spread])


def level(step: int, replicas: Replicas, honest: Sequence[int], held_out: Tensor) -> Level:
    each = [replicas.replica(number) for number in honest]
    mean = {name: torch.stack([weights[name] for weights in each]).mean(dim=0) for name in each[0]}
    length = _norm(mean)
    apart = [_norm({name: weights[name] - mean[name] for name in mean}) / length for weights in each]
    loss = statistics.fmean(held_out_loss(weights, held_out) for weights in each)
    return Level(step, loss, held_out_loss(mean, held_out), statistics.fmean(apart))


def _norm(weights: dict[str, Tensor]) -> float:
    return float(sum(float(tensor.square().sum()) for tensor in weights.values()) ** 0.5)


def execute(plan: ReplicaPlan, models: Path, is_orphaned: Callable[[], bool] = lambda: False) -> ReplicaResult:
    """Runs ``plan`` on one thread. Raises ``InterruptedError`` once ``is_orphaned``, when no process waits for it."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    base = base_model(plan.seed, models)
    began, cpu_began = time.monotonic(), time.process_time()
    language = Language(plan.seed)
    held_out = torch.from_numpy(language.documents(HELD_OUT_TEXT, HELD_OUT))
    decay_steps = plan.rounds if plan.decays else None
    replicas = Replicas(base, plan.replicas, learning_rate=plan.learning_rate, steps=decay_steps)
    rule = rule_of(plan, base)
    levels = [level(0, replicas, rule.honest, held_out)]
    measured = measured_steps(plan)
    exchanges, comings = 0, Random(f"away {plan.seed}")
    for step, tokens in enumerate(texts(language, FIRST_TEXT, plan.rounds, plan.replicas, plan.batch), start=1):
        if is_orphaned():
            raise InterruptedError("the experiment that this run belongs to has ended")
        replicas.step(tokens, [number for number in range(plan.replicas) if not rule.present[number]])
        if step % plan.every == 0:
            offered = [{n: t.clone() for n, t in replicas.replica(r).items()} for r in range(plan.replicas)]
            exchanges += 1
            apply(replicas, offered, rule.outer(offered))
            if plan.away:
                rule.present = present_next(rule.present, plan.away, comings)
        if step in measured:
            levels.append(level(step, replicas, [n for n in rule.honest if rule.present[n]], held_out))
    parameters = sum(tensor.numel() for tensor in base.values())
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
    received = rule.received_bytes / max(exchanges, 1)
    return ReplicaResult(
        plan.key, plan.condition, plan.seed, seconds, cpu_seconds, levels, received, parameters, plan, rule.verdicts
    )


def present_next(present: Sequence[bool], away: float, random: Random) -> list[bool]:
    """Returns who is present until the next outer step: those absent return after ``AWAY_STEPS`` on average, and others
    leave as often as keeps a share ``away`` absent; two at least stay."""
    leaving = away / (1.0 - away) / AWAY_STEPS
    draws = [random.random() for _ in present]
    found = [draw >= leaving if here else draw < 1 / AWAY_STEPS for here, draw in zip(present, draws, strict=True)]
    return found if sum(found) >= 2 else list(present)


def apply(replicas: Replicas, offered: Sequence[noloco.Weights], outer: Sequence[noloco.Weights]) -> None:
    """Sets every replica's θ ← φ + (θ - θ offered)."""
    for number, (before, after) in enumerate(zip(offered, outer, strict=True)):
        weights = replicas.replica(number)
        for name, moved in noloco.overlapped(weights, before, after).items():
            weights[name].copy_(moved)
