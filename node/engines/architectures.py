"""Architectures that the lean decoder can run, described by data, and their weights packed for it.

Packed means: queries, keys and values are in one matrix whose rows are ordered by key-value head, [its queries, its
key, its value], and within each query and key the two coordinates that a rotary angle rotates lie side by side, so that
the rotation is one complex multiplication. Queries and keys are reordered alike, which leaves their product unchanged.
LoRA adapters are added to the matrices that they adapt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

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
    kv_heads: int
    queries: int  # query heads that share one key-value head
    head_size: int
    rotated: int  # coordinates of a head that rotate with the position
    epsilon: float
    root_mean_square: bool  # norms neither subtract a mean nor add a bias
    activation: str
    parallel: bool


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """Weight, (out, in) or (size,), and bias, of a matrix or a norm."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    attention_norm: Affine
    queries_keys_values: Affine
    head_scale: Tensor | None  # (queries + 1, head_size) norm weights of a head's queries and of its key
    attention_output: Affine
    mlp_norm: Affine
    gate: Affine | None
    up: Affine
    down: Affine


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    embedding: Tensor  # (V, hidden)
    layers: tuple[LayerWeights, ...]
    final_norm: Affine
    head: Affine


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
        kv_heads=kv_heads,
        queries=heads // kv_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        rotated=rotated,
        epsilon=getattr(config, architecture.norm_epsilon),
        root_mean_square=architecture.norm_epsilon == "rms_norm_eps",
        activation=config.hidden_act,
        parallel=architecture.parallel_residual is not None and bool(getattr(config, architecture.parallel_residual)),
    )


def pack_weights(model: PreTrainedModel, architecture: Architecture, shape: ModelShape, order: Tensor) -> PackedWeights:
    """Returns a packed copy of the model's present weights; ``order`` is ``packing_order(shape)`` on its device."""
    layers = model.get_submodule(architecture.layers)
    assert isinstance(layers, nn.ModuleList)
    embedding = model.get_submodule(architecture.embedding).weight
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert isinstance(embedding, Tensor)
    packed_embedding = embedding.detach().clone()
    packed_head = _copied(_affine(head)) if head.weight is not embedding else Affine(packed_embedding, head.bias)
    return PackedWeights(
        embedding=packed_embedding,
        layers=tuple(_pack_layer(layer, architecture, shape, order) for layer in layers),
        final_norm=_copied(_affine(model.get_submodule(architecture.final_norm))),
        head=packed_head,
    )


def packing_order(shape: ModelShape, *, fused: bool) -> Tensor:
    """For each packed row, its index in the model's query, key and value matrices stacked in this order, (rows,) int64.

    ``fused``: the model has one matrix for the three, already ordered by head.
    """
    size, queries, kv_heads = shape.head_size, shape.queries, shape.kv_heads
    rotating = interleaved(size, shape.rotated)
    in_order = torch.arange(size)
    rows = []
    for head in range(kv_heads):
        if fused:
            starts = [head * 3 * size, head * 3 * size + size, head * 3 * size + 2 * size]
        else:
            first_key, first_value = kv_heads * queries * size, kv_heads * (queries + 1) * size
            starts = [(head * queries + query) * size for query in range(queries)]
            starts += [first_key + head * size, first_value + head * size]
        rows += [start + (in_order if start == starts[-1] else rotating) for start in starts]
    return torch.cat(rows)


def interleaved(size: int, rotated: int) -> Tensor:
    """Order of a head's coordinates in which i and i + rotated/2, which are rotated together, are neighbours."""
    half = torch.arange(rotated // 2)
    return torch.cat([torch.stack([half, half + rotated // 2], dim=1).flatten(), torch.arange(rotated, size)])


def _pack_layer(layer: nn.Module, architecture: Architecture, shape: ModelShape, order: Tensor) -> LayerWeights:
    def of(name: str) -> Affine:
        return _copied(_affine(layer.get_submodule(name)))

    sources = [_affine(layer.get_submodule(name)) for name in architecture.queries_keys_values]
    biases = [source.bias for source in sources if source.bias is not None]
    joined = Affine(
        torch.cat([source.weight for source in sources])[order], torch.cat(biases)[order] if biases else None
    )
    scale = None
    if architecture.head_norms is not None:
        rotating = interleaved(shape.head_size, shape.rotated).to(order.device)
        query, key = (_affine(layer.get_submodule(name)).weight[rotating] for name in architecture.head_norms)
        scale = torch.cat([query.expand(shape.queries, -1), key.unsqueeze(0)])
    return LayerWeights(
        attention_norm=of(architecture.attention_norm),
        queries_keys_values=joined,
        head_scale=scale,
        attention_output=of(architecture.attention_output),
        mlp_norm=of(architecture.mlp_norm),
        gate=of(architecture.gate) if architecture.gate else None,
        up=of(architecture.up),
        down=of(architecture.down),
    )


def _affine(module: nn.Module) -> Affine:
    """Returns the module's live weight and bias, its active LoRA adapters added to the weight."""
    base: Any = module
    adapted: Any = module
    delta: Tensor | None = None
    if isinstance(module, LoraLayer):
        base = module.get_base_layer()
        for name in module.active_adapters:
            if name in module.lora_A and not module.merged and not module.disable_adapters:
                added: Tensor = adapted.get_delta_weight(name)
                delta = added if delta is None else delta + added
    weight: Tensor = base.weight.detach()
    bias: Tensor | None = getattr(base, "bias", None)
    return Affine(weight if delta is None else weight + delta.to(weight.dtype), None if bias is None else bias.detach())


def _copied(affine: Affine) -> Affine:
    return Affine(affine.weight.clone(), None if affine.bias is None else affine.bias.clone())
