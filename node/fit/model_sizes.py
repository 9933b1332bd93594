"""The sizes of a model that its memory follows from, read from its folder without torch.

For the architectures of ``KNOWN`` the parameters are counted from ``config.json`` and are exact; a test compares them
with transformers' own models. Others are counted by ``node.policy.model_counting``, which has torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from node.policy.model_config import read_config
from node.policy.model_files import weight_files
from node.policy.safetensors_header import read_header
from protocol.errors import ConfigurationError


class ModelSizes(Struct, frozen=True, kw_only=True):
    """What the formulas of ``footprint`` need of a model. Parameters are counted as in memory: tied ones once."""

    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int  # rows of the embedding
    context: int  # positions
    tied: bool  # the head is the embedding
    gated: bool  # the MLP multiplies two openings; otherwise it has one
    head_norms: bool  # queries and keys are normalised by head
    embedding_parameters: int
    layer_parameters: int  # one layer's matrices with their biases
    norm_parameters: int  # all norms of the model
    head_parameters: int  # 0 where it is tied
    layer_linears: int  # linear layers in one layer
    layer_linear_widths: int  # their inputs and outputs, summed: an adapter of rank r has r times as many parameters
    disk_bytes: int = 0  # of the safetensors

    @property
    def parameters(self) -> int:
        return (
            self.embedding_parameters
            + self.layers * self.layer_parameters
            + self.norm_parameters
            + self.head_parameters
        )

    @property
    def queries(self) -> int:
        """Width of all heads' queries."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Width of all heads' keys, and of their values."""
        return self.kv_heads * self.head_size

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of a LoRA adapter of every linear layer but the head."""
        return rank * self.layers * self.layer_linear_widths


class _Known(Struct, frozen=True):
    """How an architecture differs from llama; defaults are those of its configuration in transformers."""

    qkv_bias: bool | str = False  # a string: by this key of the configuration, with ``bias_default``
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    bias_default: bool = False
    gated: bool = True
    norm_vectors: int = 1  # of a norm: a scale, or scale and shift
    head_norms: bool = False
    fused: bool = False  # one matrix for queries, keys and values
    tied: bool = False
    kv_heads: int | None = None  # None: as many as heads
    head_size: int | None = None  # None: hidden / heads


KNOWN: Final[Mapping[str, _Known]] = {
    "llama": _Known(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": _Known(kv_heads=8),
    "qwen2": _Known(qkv_bias=True, kv_heads=32),
    "qwen3": _Known(
        qkv_bias="attention_bias", output_bias="attention_bias", head_norms=True, kv_heads=32, head_size=128
    ),
    "gemma": _Known(qkv_bias="attention_bias", output_bias="attention_bias", tied=True, kv_heads=16, head_size=256),
    "gpt_neox": _Known(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias=True,
        bias_default=True,
        gated=False,
        norm_vectors=2,
        fused=True,
    ),
}


def known_sizes(folder: Path) -> ModelSizes | None:
    """Returns the sizes of the model in ``folder``; None for an architecture that must be counted with torch.

    Raises ``ConfigurationError`` for a configuration that ``read_config`` refuses, or that claims more
    than the files hold.
    """
    sizes = sizes_from(read_config(folder), str(folder / "config.json"))
    return None if sizes is None else checked_against_files(sizes, folder)


def sizes_from(config: Mapping[str, Any], source: str) -> ModelSizes | None:
    """Returns the sizes that a configuration describes, by arithmetic; None for an architecture that is not known.

    Raises ``ConfigurationError``, which names ``source``, if a size is missing.
    """
    known = KNOWN.get(str(config.get("model_type")))
    return None if known is None else _sizes(config, known, source)


def checked_against_files(sizes: ModelSizes, folder: Path) -> ModelSizes:
    """Returns ``sizes`` with the bytes on disk. Raises ``ConfigurationError`` where the files hold fewer weights."""
    files = weight_files(folder)
    held = sum(tensor.elements for path in files for tensor in read_header(path).values())
    if held < sizes.parameters:
        raise ConfigurationError(
            f"{folder / 'config.json'} claims {sizes.parameters:,} weights, and the safetensors beside it hold "
            f"{held:,}: a file is missing or of another model; fetch the model again"
        )
    return ModelSizes(
        **{name: getattr(sizes, name) for name in sizes.__struct_fields__ if name != "disk_bytes"},
        disk_bytes=sum(path.stat().st_size for path in files),
    )


def _sizes(config: Mapping[str, Any], known: _Known, source: str) -> ModelSizes:
    def number(key: str, default: int | None = None) -> int:
        value = config.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigurationError(f"{source} lacks {key}: fetch the model again")
        return int(value)

    def has(bias: bool | str) -> int:
        return int(config.get(bias, known.bias_default) if isinstance(bias, str) else bias)

    hidden, intermediate, layers = number("hidden_size"), number("intermediate_size"), number("num_hidden_layers")
    heads, vocabulary = number("num_attention_heads"), number("vocab_size")
    kv_heads = heads if known.fused else number("num_key_value_heads", known.kv_heads or heads)
    head_size = number("head_dim", known.head_size or max(1, hidden // heads))
    tied = bool(config.get("tie_word_embeddings", known.tied))
    queries, keys = heads * head_size, kv_heads * head_size
    into = [(hidden, queries + 2 * keys)] if known.fused else [(hidden, queries), (hidden, keys), (hidden, keys)]
    opened = [(hidden, intermediate)] * (2 if known.gated else 1)
    linears = [*into, (queries, hidden), *opened, (intermediate, hidden)]
    biases = has(known.qkv_bias) * (queries + 2 * keys) + has(known.output_bias) * hidden
    biases += has(known.mlp_bias) * (len(opened) * intermediate + hidden)
    of_heads = 2 * head_size if known.head_norms else 0
    return ModelSizes(
        model_type=str(config["model_type"]),
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=vocabulary,
        context=number("max_position_embeddings", 1 << 20),
        tied=tied,
        gated=known.gated,
        head_norms=known.head_norms,
        embedding_parameters=vocabulary * hidden,
        layer_parameters=sum(math.prod(each) for each in linears) + biases,
        norm_parameters=known.norm_vectors * hidden * (2 * layers + 1) + layers * of_heads,
        head_parameters=0 if tied else vocabulary * hidden,
        layer_linears=len(linears),
        layer_linear_widths=sum(sum(each) for each in linears),
    )
