"""The shapes of published models, as their ``config.json`` has them. Data alone: no library is needed to read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

_COMMON: Final = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "dtype": "bfloat16"}
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
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
)
_QWEN: Final = SHAPES["Qwen2.5-0.5B"]
LARGER: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "Qwen2.5-1.5B": {
            **_QWEN,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
        },
        "Qwen2.5-7B": {
            **_QWEN,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
        },
    }
)
"""Shapes that a GPU is measured with."""


def config_of(shape: str, *, layers: int | None = None) -> dict[str, Any]:
    """Returns the ``config.json`` of a shape, with fewer layers if wanted. Raises ``KeyError`` for an unknown one."""
    return {**SHAPES[shape], **({} if layers is None else {"num_hidden_layers": layers})}
