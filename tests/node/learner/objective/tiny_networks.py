"""Tiny networks of each architecture, and groups to train them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup

VOCABULARY = 23
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48}


def qwen3(**extra: Any) -> Any:
    return Qwen3ForCausalLM(
        Qwen3Config(
            **SIZES,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            **extra,
        )
    )


def sliding_qwen3() -> Any:
    return qwen3(use_sliding_window=True, sliding_window=4, max_window_layers=1)


def llama() -> Any:
    config = LlamaConfig(
        **SIZES,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def qwen2() -> Any:
    config = Qwen2Config(
        **SIZES,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def gemma2() -> Any:
    """Its norms multiply by 1 + w, and its MLP takes GELU."""
    config = Gemma2Config(
        **SIZES,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=8,
    )
    return Gemma2ForCausalLM(config)


def gpt_neox() -> Any:
    config = GPTNeoXConfig(
        **SIZES,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    return GPTNeoXForCausalLM(config)


ARCHITECTURES = {
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3-sliding": sliding_qwen3,
    "llama": llama,
    "gpt-neox": gpt_neox,
}


def built(architecture: str, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(3)
    return ARCHITECTURES[architecture]().to(dtype).eval()


def completion(ids: Sequence[int], advantage: float = 1.0, behaviour: float = -1.0) -> TrainingCompletion:
    alignment = Alignment(np.arange(len(ids)), np.full(len(ids), behaviour, np.float32), 0)
    return TrainingCompletion(np.array(ids, dtype=np.int64), alignment, advantage, SELF)


def groups(seed: int = 0, prompts: int = 4, completions: int = 3) -> list[TrainingGroup]:
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(prompts):
        prompt = tuple(int(i) for i in rng.integers(0, VOCABULARY, rng.integers(1, 12)))
        each = tuple(
            completion(rng.integers(0, VOCABULARY, rng.integers(1, 9)).tolist(), float(rng.normal()))
            for _ in range(completions)
        )
        result.append(TrainingGroup(prompt, each, sum(len(c.token_ids) for c in each), len(each)))
    return result


def logits_and_gradients(model: Any, ids: Tensor) -> list[Tensor]:
    """Those of all that is trained, in float32."""
    model.zero_grad()
    logits = model(input_ids=ids).logits.float()
    logits.log_softmax(-1)[..., 3].sum().backward()
    return [logits.detach(), *(p.grad.float().clone() for p in model.parameters() if p.requires_grad)]


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor], error: float) -> None:
    """Fails where one is farther from what is expected than ``error``, relative to its norm."""
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= error * (1e-3 + other.norm())


def gradients(model: Any) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found
