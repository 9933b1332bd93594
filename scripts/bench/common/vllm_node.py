"""vLLM as a node on a processor has it, in its own environment and process, behind the engine protocol; its memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from node.configuration import Config
from node.engines.backends import EngineParts, engine_of
from node.engines.donors.donated_engine import DonatedEngine
from node.engines.engine import Engine, Sampling
from node.engines.process.engine_child import EngineChild
from node.engines.process.process_engine import ProcessEngine
from node.engines.vllm_backend.processor import cache_bytes
from node.events import EngineChanged, Event
from node.fit.footprint import trained_parameters, weight_bytes
from node.fit.model_sizes import known_sizes
from node.fit.settings import MemorySettings
from node.fit.vllm import processor_bytes
from node.fit.workload import VllmMemory
from node.home import Home
from node.learner.generation.engine_weights import EngineWeights
from node.policy.policy import Policy
from scripts.bench.common.generation_turns import COMPLETIONS, Workload
from scripts.bench.common.process_usage import process_memory
from scripts.bench.common.reporting import Figure

PROMPTS: Final = 8
ROWS: Final = PROMPTS * COMPLETIONS
LONGEST_PROMPT: Final = 64
LONGEST_ANSWER: Final = 96
BAR: Final = "within 10 %"


@dataclass(frozen=True)
class NodeOnVllm:
    """What the learner of such a node has."""

    policy: Policy
    engine: Engine
    weights: EngineWeights

    @property
    def process(self) -> int:
        return process_of(self.engine)


def process_of(engine: Engine) -> int:
    """Returns the process of an engine that has one now, and may have donors besides."""
    own = engine.own if isinstance(engine, DonatedEngine) else engine
    assert isinstance(own, ProcessEngine) and isinstance(own._child, EngineChild)
    return own._child.pid


def workload_in(folder: Path, name: str) -> Workload:
    """Returns prompts and limits of mixed lengths for the model in ``folder``. Any of its tokens may be drawn, its end
    among them."""
    random = np.random.default_rng(0)
    tokens = Policy.load(_config(folder, 1).policy).tokens
    lengths = random.integers(8, LONGEST_PROMPT + 1, PROMPTS)
    prompts = [random.integers(2, tokens.vocabulary, length).tolist() for length in lengths]
    limits = random.integers(8, LONGEST_ANSWER + 1, PROMPTS).tolist()
    (end,) = tokens.eos_ids
    return Workload(name, folder, prompts, limits, eos_id=end)


@contextmanager
def node_on_vllm(model: Path, threads: int, home: Path) -> Iterator[NodeOnVllm]:
    """Yields a node whose vLLM holds the weights of ``model``. Raises ``SystemExit`` where vLLM was lost meanwhile."""
    config = _config(model, threads)
    policy = Policy.load(config.policy)
    told: list[Event] = []
    home.mkdir(mode=0o700)
    with ExitStack() as stack:
        parts = EngineParts(Home(home), config, policy, ROWS, True, False, told.append, time.time)
        engine = engine_of(parts, stack)
        weights = EngineWeights(engine)
        weights.load(1, policy.trainable())
        yield NodeOnVllm(policy, engine, weights)
        changes = [each for each in told if isinstance(each, EngineChanged)]
        if any(each.backend != "vllm" or each.losses for each in changes):
            raise SystemExit(f"vLLM was lost, or another engine took over: {changes}")


def _config(folder: Path, threads: int) -> Config:
    return Config.model_validate(
        {
            "policy": {"model": str(folder), "adapter_rank": 0, "device": "cpu", "dtype": "float32"},
            "engine": {"backend": "vllm"},
            "machine": {"max_threads": threads},
        }
    )


def vllm_figures(folder: Path, settings: MemorySettings, threads: int, home: Path) -> list[Figure]:
    """Returns the peak of vLLM's process with the model in ``folder``, measured and as the plan has it.

    The process starts, compiles for the model, takes all weights, generates a round, takes all weights again, as after
    a learner's long step, and generates again.
    """
    sizes = known_sizes(folder)
    assert sizes is not None
    work = workload_in(folder, "memory")
    with node_on_vllm(folder, threads, home) as node:
        node.engine.generate(work.requests(), Sampling())
        change_all(node.policy)
        node.weights.load(2, node.policy.trainable())
        node.engine.generate(work.requests(), Sampling())
        peak = process_memory(node.process).peak
    vllm = VllmMemory(cache_bytes(os.environ))
    trained, model_bytes = trained_parameters(sizes, settings), weight_bytes(sizes, settings)
    expected = sum(processor_bytes(sizes, settings, vllm, model_bytes, trained).values())
    name = f"{folder.name}: vLLM's process"
    return [
        Figure(f"{name}, measured", peak / 1e9, "GB", "lower"),
        Figure(f"{name}, predicted", expected / 1e9, "GB", "lower"),
        Figure(f"{name}, predicted / measured - 1", 100 * (expected / peak - 1), "%", "lower", BAR),
    ]


@torch.no_grad()
def change_all(policy: Policy) -> None:
    """Changes every weight, so that all are sent again."""
    for parameter in policy.trainable().values():
        parameter.mul_(1.05)
