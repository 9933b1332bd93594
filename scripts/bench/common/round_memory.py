"""Measures the memory of a learner's phases, in this process: ``python -m scripts.bench.common.round_memory JSON``.

It runs what a learner runs, by the same classes: loading, generating, learning, saving. Before each phase the kernel's
high-water mark of resident memory is set back (/proc/self/clear_refs), so that each phase's own peak is printed, with
what was resident before.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from node.checkpoints.checkpoints import BackgroundCheckpoints
from node.configuration import Config
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.fit.settings import MemorySettings, with_settings
from node.learner.memory.device_memory import return_freed_tensors
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.learner.objective.forward import Network, PassSettings
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import snapshot_of
from node.learner.steps.devices import StepTask
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.step import OptimizerSteps
from node.policy.policy import Policy
from scripts.bench.common.process_usage import forget_peak, process_memory


class RoundSize(Struct, frozen=True, kw_only=True):
    """How much a measured round does."""

    prompt_tokens: int
    answer_tokens: int
    groups: int
    completions: int


def measure(model: str, settings: MemorySettings, size: RoundSize) -> dict[str, dict[str, float]]:
    """Returns by phase its peak in bytes and its seconds."""
    config = with_settings(Config.model_validate({"policy": {"model": model}}), settings)
    measured: dict[str, dict[str, float]] = {}
    began = time.monotonic()

    def lap(phase: str) -> None:
        nonlocal began
        measured[phase] = {"bytes": process_memory().peak, "seconds": time.monotonic() - began}
        gc.collect()
        forget_peak()
        began = time.monotonic()

    lap("libraries")
    policy = Policy.load(config.policy)
    return_freed_tensors(policy.parameters)  # as a learner does
    lap("loading")
    engine = TorchEngine(policy, rows=settings.rows, seed=0, merge_adapters=settings.merge_adapters)
    engine.load_weights(0, policy.trainable())
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(3, policy.vocabulary, size.prompt_tokens).tolist()) for _ in range(size.groups)]
    requests = [GenerationRequest(prompt, size.completions, size.answer_tokens) for prompt in prompts]
    generated = engine.generate(requests, Sampling(1.0, 0))
    lap("generating")
    engine.release()
    groups = []
    for prompt, samples in zip(prompts, generated, strict=True):
        completions = tuple(
            TrainingCompletion(
                sample.token_ids,
                Alignment(np.arange(len(sample.token_ids)), sample.logps, 0),
                1.0 if index % 2 else -1.0,
                SELF,
            )
            for index, sample in enumerate(samples)
        )
        groups.append(TrainingGroup(prompt, completions, sum(len(s.token_ids) for s in samples), len(samples)))
    optimizer = MasterAdamW(policy.trainable(), config.learner)
    reference = ReferencePolicy(policy.trainable(), config.objective)
    for phase in ("learning", "learning again"):  # the first step makes the optimizer's moments
        passes = PassSettings(settings.batch_tokens, settings.recompute, settings.chunk_tokens)
        task = StepTask(tuple(groups), passes, 1.0, size.answer_tokens, len(groups))
        OptimizerSteps(Network.of(policy.model), optimizer, config.objective, reference).take(task)
        lap(phase)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = BackgroundCheckpoints(Path(folder), keep=1)
        checkpoints.save(snapshot_of(config, policy, optimizer, LearnerState(), dict))
        [written] = checkpoints.finished(wait=True)
        checkpoints.close()
        lap("saving")
        measured["saving"]["disk_bytes"] = written.size_bytes
    return measured


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    found = measure(
        asked["model"],
        msgspec.convert(asked["settings"], MemorySettings),
        msgspec.convert(asked["size"], RoundSize),
    )
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
