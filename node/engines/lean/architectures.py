"""Architectures that the lean decoder can run, described by data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from transformers import PretrainedConfig

from node.engines.cache_size import AttentionShape
from node.kernels.products import ACTIVATIONS

STATIC_ROTATIONS: Final = frozenset({"default", "linear", "llama3", "yarn"})  # angles depend on the position alone


@dataclass(frozen=True, slots=True)
class Architecture:
    """The names of a model's submodules, within the model and within one of its layers."""

    embedding: str
    layers: str
    final_norm: str
    rotary: str
    norm_epsilon: str  # key of the configuration
    attention_norm: str
    queries_keys_values: tuple[str, ...]  # three matrices, or one in which each head has its query, key and value
    head_norms: tuple[str, str] | None  # of queries and of keys
    attention_output: str
    mlp_norm: str
    gate: str | None
    up: str
    down: str
    parallel_residual: str | None = None  # key of the configuration: attention and MLP both read the layer's input


_LLAMA: Final = Architecture(
    embedding="model.embed_tokens",
    layers="model.layers",
    final_norm="model.norm",
    rotary="model.rotary_emb",
    norm_epsilon="rms_norm_eps",
    attention_norm="input_layernorm",
    queries_keys_values=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    head_norms=None,
    attention_output="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)
_QWEN3: Final = Architecture(
    **{name: getattr(_LLAMA, name) for name in Architecture.__slots__ if name != "head_norms"},
    head_norms=("self_attn.q_norm", "self_attn.k_norm"),
)
_GPT_NEOX: Final = Architecture(
    embedding="gpt_neox.embed_in",
    layers="gpt_neox.layers",
    final_norm="gpt_neox.final_layer_norm",
    rotary="gpt_neox.rotary_emb",
    norm_epsilon="layer_norm_eps",
    attention_norm="input_layernorm",
    queries_keys_values=("attention.query_key_value",),
    head_norms=None,
    attention_output="attention.dense",
    mlp_norm="post_attention_layernorm",
    gate=None,
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    parallel_residual="use_parallel_residual",
)
ARCHITECTURES: Final[dict[str, Architecture]] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _QWEN3,
    "gpt_neox": _GPT_NEOX,
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and constants of one model."""

    layers: int
    hidden: int
    kv_heads: int
    queries: int  # query heads that share one key-value head
    head_size: int
    rotated: int  # coordinates of a head that rotate with the position
    epsilon: float
    root_mean_square: bool  # norms neither subtract a mean nor add a bias
    activation: str
    parallel: bool

    def attention(self, element_bytes: int, *, masked_rows: bool) -> AttentionShape:
        return AttentionShape(
            self.layers, self.hidden, self.kv_heads, self.queries, self.head_size, element_bytes, masked_rows
        )


def architecture_of(config: PretrainedConfig) -> Architecture | None:
    """Returns the architecture of a model with this configuration, None if the lean decoder cannot compute it."""
    architecture = ARCHITECTURES.get(config.model_type)
    rotary: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    covered = (
        rotary.get("rope_type", "default") in STATIC_ROTATIONS
        and kinds == {"full_attention"}
        and getattr(config, "hidden_act", None) in ACTIVATIONS
    )
    return architecture if covered else None


def shape_of(config: PretrainedConfig, architecture: Architecture, rotated: int) -> ModelShape:
    heads: int = config.num_attention_heads
    kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
    return ModelShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        kv_heads=kv_heads,
        queries=heads // kv_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        rotated=rotated,
        epsilon=getattr(config, architecture.norm_epsilon),
        root_mean_square=architecture.norm_epsilon == "rms_norm_eps",
        activation=config.hidden_act,
        parallel=architecture.parallel_residual is not None and bool(getattr(config, architecture.parallel_residual)),
    )
