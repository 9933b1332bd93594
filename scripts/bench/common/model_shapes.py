"""Model folders of the shape of published models, with random weights: no hub can be reached where benchmarks run.

The tokenizer is a built-in model's, which has fewer tokens than these vocabularies; the head is as wide as theirs.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from node.policy.model_files import BUILTIN_MODELS

_COMMON: Final = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "dtype": "bfloat16"}
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "SmolLM2-135M": _COMMON
    | {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "Pythia-160M": {
        "model_type": "gpt_neox",
        "hidden_act": "gelu",
        "dtype": "float16",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 50304,
        "max_position_embeddings": 2048,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
    },
    "Qwen2.5-0.5B": _COMMON
    | {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": _COMMON
    | {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "Llama-3.2-1B": _COMMON
    | {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
}


def config_of(shape: str, *, layers: int | None = None) -> dict[str, Any]:
    """Returns the ``config.json`` of a shape, with fewer layers if wanted. Raises ``KeyError`` for an unknown one."""
    return {**SHAPES[shape], **({} if layers is None else {"num_hidden_layers": layers})}


def write_model(folder: Path, shape: str, *, layers: int | None = None, seed: int = 0) -> Path:
    """Writes a model of the shape into ``folder``, bf16 on disk as published ones are; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape, layers=layers)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILTIN_MODELS / "robin" / name, folder)
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    tied = bool(config.tie_word_embeddings)
    tensors = {}
    for name, parameter in model.named_parameters():
        if tied and name == "lm_head.weight":
            continue
        values = torch.empty(parameter.shape, dtype=torch.bfloat16)
        if parameter.ndim == 1:
            values.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            values.normal_(0.0, 1 / math.sqrt(parameter.shape[-1]), generator=generator)
        tensors[name] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
