"""vLLM as a node on a processor has it: in its own environment and process, behind the engine protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from node.configuration import Config
from node.engines.backends import EngineParts, engine_of
from node.engines.donors.donated_engine import DonatedEngine
from node.engines.engine import Engine
from node.engines.process.engine_child import EngineChild
from node.engines.process.process_engine import ProcessEngine
from node.events import EngineChanged, Event
from node.home import Home
from node.learner.generation.engine_weights import EngineWeights
from node.policy.policy import Policy
from scripts.bench.common.generation_turns import COMPLETIONS, Workload

PROMPTS: Final = 8
ROWS: Final = PROMPTS * COMPLETIONS
LONGEST_PROMPT: Final = 64
LONGEST_ANSWER: Final = 96


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
