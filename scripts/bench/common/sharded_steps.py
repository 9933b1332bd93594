"""One process of ``scripts.bench.sharded``: ``python -m scripts.bench.common.sharded_steps JSON``.

It takes optimizer steps on one batch, on a model of random weights, alone or as one of several processes that hold the
model in shards, by the learner's own classes. It prints each step's loss and gradient norm, the peak of its resident
memory, and, where weights of another run are given, how far its own are from them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from msgspec import Struct
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from node.configuration import LearnerSection, ObjectiveSection
from node.learner.memory.freed_tensors import return_freed_tensors
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.learner.objective.forward import Network
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.pass_settings import PassSettings
from node.learner.sharding.model import shard_network
from node.learner.sharding.process_group import DeviceGroup
from node.learner.steps.devices import ONE_DEVICE, Devices
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.shards import rows_of, shard_of
from node.learner.steps.step import optimizer_steps
from scripts.bench.common.process_memory import forget_peak, process_memory

RATE: Final = 1e-5


class Steps(Struct, frozen=True, kw_only=True):
    """What to do. Equal for all processes of a run but for ``rank``."""

    rank: int
    count: int
    meeting: str
    shape: dict[str, int]  # of a Qwen3 model
    dtype: str
    groups: int
    completions: int
    prompt_tokens: int
    answer_tokens: int
    batch_tokens: int
    steps: int
    weights: str  # a file: written by one process alone, compared with by several


def model_of(shape: Mapping[str, int], dtype: torch.dtype) -> Any:
    """Returns a model of random weights, the same in every process."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        model: Any = Qwen3ForCausalLM(Qwen3Config.from_dict({**shape, "tie_word_embeddings": True}))
    finally:
        torch.set_default_dtype(torch.float32)
    return model.eval()


def batch_of(steps: Steps) -> list[TrainingGroup]:
    """Returns groups of random tokens, of unlike lengths."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(steps.groups):
        prompt = tuple(rng.integers(0, steps.shape["vocab_size"], rng.integers(1, steps.prompt_tokens)).tolist())
        each = []
        for _ in range(steps.completions):
            tokens = int(rng.integers(1, steps.answer_tokens))
            ids = rng.integers(0, steps.shape["vocab_size"], tokens)
            alignment = Alignment(np.arange(tokens), rng.uniform(-11, -7, tokens).astype(np.float32), 0)
            each.append(TrainingCompletion(ids, alignment, float(rng.normal()), SELF))
        made.append(TrainingGroup(prompt, tuple(each), sum(len(c.token_ids) for c in each), len(each)))
    return made


def run(steps: Steps) -> dict[str, Any]:
    libraries = process_memory().resident
    model = model_of(steps.shape, getattr(torch, steps.dtype))
    network = Network.of(model)
    return_freed_tensors(sum(p.numel() for p in model.parameters()))
    devices: Devices = ONE_DEVICE
    if steps.count > 1:
        devices = group = DeviceGroup(Path(steps.meeting), steps.rank, steps.count, torch.device("cpu"))
        shard_network(network, group.mesh)
    trained = dict(model.named_parameters())
    optimizer = MasterAdamW(trained, LearnerSection(learning_rate=RATE), sums=devices.sums)
    objective = ObjectiveSection()
    others, groups = OtherPolicies(trained, objective), batch_of(steps)
    loading = process_memory().peak
    forget_peak()
    found, began = [], time.monotonic()
    for _ in range(steps.steps):
        done = optimizer_steps(
            network,
            optimizer,
            groups,
            PassSettings(steps.batch_tokens, recompute=True, chunk_tokens=512),
            objective,
            others,
            temperature=1.0,
            max_new_tokens=steps.answer_tokens,
            whole_batch=steps.groups * steps.completions,
            devices=devices,
        )
        assert done.step is not None
        found.append((done.objective.loss, done.step.gradient_norm))
    seconds = (time.monotonic() - began) / steps.steps
    peak = process_memory().peak
    weights = {name: shard_of(p.detach()) for name, p in trained.items()}
    apart, moved = 0.0, 0.0
    if steps.count == 1:
        save_file(weights, steps.weights)
    else:
        apart, moved = _apart(weights, {n: p.shape for n, p in trained.items()}, steps)
    return {
        "steps": found,
        "seconds": seconds,
        "libraries": libraries,
        "loading": loading,
        "peak": peak,
        "apart": apart,
        "moved": moved,
        "parameters": sum(p.numel() for p in trained.values()),
    }


def _apart(weights: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size], steps: Steps) -> tuple[float, float]:
    """Returns the root mean square of the differences from one process's weights, and of what its steps moved them by;
    both of the rows that are here."""
    whole = dict(model_of(steps.shape, getattr(torch, steps.dtype)).named_parameters())
    squares = moves = elements = 0.0
    with safe_open(steps.weights, framework="pt") as file:
        for name, ours in weights.items():
            rows = rows_of(shapes[name], steps.rank, steps.count)
            theirs = file.get_slice(name)[rows.start : rows.stop].double()
            squares += float((ours.double() - theirs).square().sum())
            moves += float((whole[name].detach()[rows].double() - theirs).square().sum())
            elements += ours.numel()
    return (squares / elements) ** 0.5, (moves / elements) ** 0.5


def main() -> None:
    found = run(msgspec.json.decode(sys.argv[1], type=Steps))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
