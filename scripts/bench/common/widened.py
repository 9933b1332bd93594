"""A model of a larger shape that computes what a small one computes: zeros around its weights.

A trained model's answers at the cost of a large model, without one to download. Every added coordinate, head, layer and
token is zero, and adds zero; norms divide by the root of a mean over more coordinates, which their weights make good.
The logits are the small model's to within rounding; those of added tokens count for nothing, as in any model that is
wider than its tokenizer.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True)
class WiderShape:
    """Sizes of a Qwen3 model, at least those of the small one; the size of a head stays."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int


@torch.no_grad()
def write_widened(source: Path, shape: WiderShape, folder: Path) -> None:
    """Writes the model of ``source``, a Qwen3 with tied embeddings, and its tokenizer to ``folder`` in ``shape``."""
    small = Qwen3ForCausalLM.from_pretrained(source, dtype=torch.float32)
    config = small.config
    assert isinstance(config, Qwen3Config)
    wide = Qwen3ForCausalLM(_widened_config(config, shape))
    for parameter in wide.parameters():
        parameter.zero_()
    ratio = shape.hidden / config.hidden_size
    theirs = dict(wide.named_parameters())
    for name, weight in small.named_parameters():
        target = theirs[name]
        if name.endswith("proj.weight") and "self_attn" in name:
            _put_heads(target, weight, name, config, shape)
        elif name.endswith("norm.weight") and "q_norm" not in name and "k_norm" not in name:
            target[: len(weight)] = weight / ratio**0.5
        else:
            target[tuple(slice(0, size) for size in weight.shape)] = weight
    wide.save_pretrained(folder)
    for each in source.glob("token*"):
        shutil.copy(each, folder)


def _widened_config(config: Qwen3Config, shape: WiderShape) -> Qwen3Config:
    changed = config.to_dict() | {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocabulary,
        "rms_norm_eps": config.rms_norm_eps * config.hidden_size / shape.hidden,
        "layer_types": ["full_attention"] * shape.layers,
    }
    return Qwen3Config(**changed)


def _put_heads(target: Tensor, weight: Tensor, name: str, config: Qwen3Config, shape: WiderShape) -> None:
    """Query head i of key-value head j stays query head i of it, among more of them."""
    size, kv_heads = int(config.head_dim), int(config.num_key_value_heads or config.num_attention_heads)
    if "o_proj" in name:
        target, weight = target.T, weight.T
    by_query = "q_proj" in name or "o_proj" in name
    each = config.num_attention_heads // kv_heads if by_query else 1
    room = shape.heads // shape.kv_heads if by_query else 1
    for head in range(kv_heads * each):
        place = (head // each * room + head % each) * size
        target[place : place + size, : weight.shape[1]] = weight[head * size : (head + 1) * size]
