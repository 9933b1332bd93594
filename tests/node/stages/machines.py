"""Small models of several architectures, whole and in stages: an owner and machines of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from node.configuration import PolicySection
from node.fit.stages.schedule import OwnerOrder
from node.policy.held_layers import hold_factors, hold_layers
from node.policy.policy import Policy
from node.stages.policy import StagedPolicy
from node.stages.stages import Stages
from node.stages.worker import StageWorker
from protocol.errors import StageLostError
from tests.node.engines.conftest import save_tokenizer

LAYERS = 4
_SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
ARCHITECTURES: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(**_SIZES, num_key_value_heads=1, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=16),
    "qwen3-sliding": Qwen3Config(
        **_SIZES, num_key_value_heads=2, head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=2
    ),
    "llama": LlamaConfig(**_SIZES, num_key_value_heads=2),
    "neox": GPTNeoXConfig(**_SIZES),
    "gemma": GemmaConfig(**_SIZES, num_key_value_heads=1, head_dim=8),
    "gemma3": Gemma3TextConfig(
        **_SIZES,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
}


def saved(name: str, folder: Path) -> Path:
    """Writes a model of the architecture with random weights, far from flat distributions."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(ARCHITECTURES[name])
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def section_of(folder: Path, **more: Any) -> PolicySection:
    given = {"device": "cpu", "dtype": "float32", "adapter_rank": 4, "four_bit": False}
    return PolicySection.model_validate({"model": str(folder)} | given | more)


def whole(folder: Path, dtype: torch.dtype = torch.float32) -> Policy:
    policy = replace(Policy.load(section_of(folder)), dtype=dtype)
    policy.base.to(dtype)  # type: ignore[arg-type]  # as its annotations have it
    scatter(policy)
    return policy


@torch.no_grad()
def scatter(policy: Policy) -> None:
    """Gives every factor values as after some training."""
    random = torch.Generator().manual_seed(5)
    for parameter in policy.trainable().values():
        parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.05)


@dataclass
class Machine:
    """A link to a worker of this process, which can be pulled."""

    worker: StageWorker
    dies_at: str = ""  # the request that it does not answer, and nothing after it
    asked: int = 0  # requests of that kind
    survives: int = 0  # how many of them it still answers
    lock: threading.Lock = field(default_factory=threading.Lock)  # its one thread computes
    runs_out: bool = False  # why it does not answer
    sent_bytes: int = 0
    received_bytes: int = 0
    meeting: threading.Barrier | None = None
    meetings: int = 0  # steps that wait there for others

    def close(self) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any) -> Any:
            if name == self.dies_at:
                self.asked += 1
                if self.asked > self.survives:
                    self.gone = True
            if self.__dict__.get("gone"):
                raise StageLostError("its plug was pulled", ran_out=self.runs_out)
            if name == "step" and self.meetings > 0:
                assert self.meeting is not None
                self.meetings -= 1
                self.meeting.wait()
            with self.lock:
                return getattr(self.worker, name)(*given)

        return ask


def empty(folder: Path) -> Policy:
    """Returns a policy without weights."""
    return _made(folder).separate()


@cache
def _made(folder: Path) -> Policy:
    """Made once: a copy of it takes a quarter of the time."""
    return Policy.without_weights(section_of(folder))


def worker(folder: Path, dtype: torch.dtype = torch.float32) -> StageWorker:
    return StageWorker(replace(empty(folder), dtype=dtype), folder)


def owner(
    folder: Path, cuts: Sequence[int] = (1, 3), dtype: torch.dtype = torch.float32, batches: int = 3
) -> tuple[StagedPolicy, list[Machine]]:
    """Returns the owner of the layers before the first of ``cuts``, and the machines of the others."""
    policy = replace(empty(folder), dtype=dtype)
    with _default_dtype(dtype):
        hold_factors(policy)
        hold_layers(policy, folder, range(cuts[0]), ends=True, factors=False)
    scatter(policy)
    ends = [*cuts[1:], LAYERS]
    stages = Stages(policy.trainable(), [range(first, last) for first, last in zip(cuts, ends, strict=True)])
    machines = [Machine(worker(folder, dtype)) for _ in cuts]
    with _default_dtype(dtype):
        for number, machine in enumerate(machines):
            stages.fill(number, machine)
    return StagedPolicy.of(policy, cuts[0], stages, OwnerOrder(2 * len(cuts) + 1, len(cuts)), batches), machines


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def gradients(policy: Policy) -> dict[str, Tensor]:
    """Returns the gradients and drops them."""
    found = {name: p.grad.clone() for name, p in policy.trainable().items() if p.grad is not None}
    policy.model.zero_grad(set_to_none=True)
    return found
