"""A model's weights as the lean decoder reads them: the live ones, and queries, keys and values packed.

Packed means: queries, keys and values are in one matrix whose rows are ordered by key-value head, [its queries, its
key, its value], and within each query and key the two coordinates that a rotary angle rotates lie side by side, so that
the rotation is one complex multiplication. Queries and keys are reordered alike, which leaves their product unchanged.

Copied are: the packed matrices, and where adapters are merged every matrix that one adapts. Everything else is the
module's own tensor. A copy is made once and written in place from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from node.engines.lean.architectures import Architecture, ModelShape
from node.engines.lean.projections import (
    AdaptedProjection,
    DenseProjection,
    ModuleProjection,
    PlainProjection,
    Projection,
    ThinProduct,
)
from node.kernels.products import Products
from node.policy.adapter import is_adapted_layer


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    weight: Tensor  # (size,)
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    attention_norm: Norm
    queries_keys_values: PlainProjection  # gives (n, kv heads × (queries + 2) × head size), in the packed order
    head_scale: Tensor | None  # (queries + 1, head_size) norm weights of a head's queries and of its key
    attention_output: Projection
    mlp_norm: Norm
    gate: Projection | None
    up: Projection
    down: Projection


@dataclass(frozen=True, slots=True, eq=False)
class ModelWeights:
    embedding: Tensor  # (V, hidden)
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    head: Projection


class WeightPacker:
    """Gives ``model``'s weights to the decoder, and keeps the copies that this takes.

    With ``merge_adapters`` an adapter is added to a copy of the matrix that it adapts; otherwise it is applied beside
    it as two thin products: slower, and without a copy.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        architecture: Architecture,
        shape: ModelShape,
        products: Products,
        *,
        merge_adapters: bool,
    ) -> None:
        self._model, self._architecture, self._shape, self._products = model, architecture, shape, products
        self._merge = merge_adapters
        self._copies: dict[str, Tensor] = {}

    @property
    def copied_bytes(self) -> int:
        return sum(copy.nbytes for copy in self._copies.values())

    @torch.no_grad()
    def pack(self) -> ModelWeights:
        """Returns the weights that the modules hold now. What an earlier call returned has them too, or neither."""
        model, names = self._model, self._architecture
        layers = model.get_submodule(names.layers)
        embedding = model.get_submodule(names.embedding).weight
        assert isinstance(layers, nn.ModuleList) and isinstance(embedding, Tensor)
        return ModelWeights(
            embedding=embedding.detach(),
            layers=tuple(self._layer(layer, f"{index}.") for index, layer in enumerate(layers)),
            final_norm=_norm(model.get_submodule(names.final_norm)),
            head=self._projection(model.get_output_embeddings(), "head"),  # type: ignore[no-untyped-call]
        )

    def _layer(self, layer: nn.Module, prefix: str) -> LayerWeights:
        names = self._architecture

        def projection(name: str) -> Projection:
            return self._projection(layer.get_submodule(name), prefix + name)

        return LayerWeights(
            attention_norm=_norm(layer.get_submodule(names.attention_norm)),
            queries_keys_values=self._queries_keys_values(layer, prefix),
            head_scale=self._head_scale(layer, prefix),
            attention_output=projection(names.attention_output),
            mlp_norm=_norm(layer.get_submodule(names.mlp_norm)),
            gate=projection(names.gate) if names.gate else None,
            up=projection(names.up),
            down=projection(names.down),
        )

    def _projection(self, module: nn.Module, name: str) -> Projection:
        dense = dense_of(module)
        if dense is None:
            return ModuleProjection(module)
        adapters = [each.like(dense.weight) for each in adapters_of(module)]
        bias = None if dense.bias is None else dense.bias.detach()
        if adapters and self._merge:
            merged = self._copy(name, dense.weight.shape, dense.weight)
            merged.copy_(_merged(dense.weight, adapters_of(module)))
            return DenseProjection(self._products, merged, bias)
        base = DenseProjection(self._products, dense.weight.detach(), bias)
        return AdaptedProjection(base, [each.thin() for each in adapters]) if adapters else base

    def _queries_keys_values(self, layer: nn.Module, prefix: str) -> PlainProjection:
        modules = [layer.get_submodule(name) for name in self._architecture.queries_keys_values]
        dense = [each for each in map(dense_of, modules) if each is not None]
        if len(dense) < len(modules):
            parts = [self._projection(module, f"{prefix}part {index}") for index, module in enumerate(modules)]
            return JoinedProjection(parts, self._shape)
        adapters = [adapters_of(module) for module in modules]
        like, inputs = dense[0].weight, dense[0].weight.shape[1]
        weight = self._packed(f"{prefix}queries keys values", (inputs,), like)
        sources = [
            _merged(each.weight, added) if self._merge else each.weight
            for each, added in zip(dense, adapters, strict=True)
        ]
        pack_heads(weight, sources, self._shape)
        bias = None
        if any(each.bias is not None for each in dense):
            bias = self._packed(f"{prefix}bias", (), like)
            given = [each.weight.new_zeros(len(each.weight)) if each.bias is None else each.bias for each in dense]
            pack_heads(bias, given, self._shape)
        base = DenseProjection(self._products, weight.flatten(0, 2), None if bias is None else bias.flatten())
        if self._merge or not any(adapters):
            return base
        return AdaptedProjection(base, [self._thin(prefix, adapters, [len(each.weight) for each in dense], like)])

    def _thin(
        self, prefix: str, adapters: Sequence[Sequence[LiveAdapter]], sizes: Sequence[int], like: Tensor
    ) -> ThinProduct:
        """Returns the adapters of all parts as one: their A below each other, each B in its part's rows and columns."""
        down = torch.cat([each.down for added in adapters for each in added]).to(like.dtype)
        ups, first = [], 0
        for added, size in zip(adapters, sizes, strict=True):
            up = like.new_zeros(size, len(down))
            for each in added:
                rank = len(each.down)
                up[:, first : first + rank] = each.up * each.scale
                first += rank
            ups.append(up)
        packed = self._packed(f"{prefix}thin", (len(down),), like)
        pack_heads(packed, ups, self._shape)
        return ThinProduct(down, packed.flatten(0, 2), 1.0)

    def _head_scale(self, layer: nn.Module, prefix: str) -> Tensor | None:
        if self._architecture.head_norms is None:
            return None
        query, key = (_norm(layer.get_submodule(name)).weight for name in self._architecture.head_norms)
        shape = self._shape
        scale = self._copy(f"{prefix}head scale", (shape.queries + 1, shape.head_size), query)
        interleave(scale[: shape.queries], query.expand(shape.queries, -1), shape.rotated)
        interleave(scale[shape.queries], key, shape.rotated)
        return scale

    def _packed(self, name: str, inputs: tuple[int, ...], like: Tensor) -> Tensor:
        shape = self._shape
        return self._copy(name, (shape.kv_heads, shape.queries + 2, shape.head_size, *inputs), like)

    def _copy(self, name: str, size: Sequence[int], like: Tensor) -> Tensor:
        if name not in self._copies:
            self._copies[name] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._copies[name]


@dataclass(frozen=True, slots=True, eq=False)
class JoinedProjection:
    """Queries, keys and values by projections of their own, put in the packed order afterwards."""

    parts: Sequence[Projection]
    shape: ModelShape

    def plain(self, x: Tensor) -> Tensor:
        shape = self.shape
        outputs = [part.plain(x) for part in self.parts]  # (n, heads × size) each
        packed = outputs[0].new_empty(len(x), shape.kv_heads, shape.queries + 2, shape.head_size)
        pack_heads(packed.movedim(0, -1), [output.T for output in outputs], shape)
        return packed.flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class LiveAdapter:
    """One active LoRA adapter of a matrix: it adds ``scale`` · (x ``down``ᵀ) ``up``ᵀ to the matrix's output x Wᵀ.

    As ``adapters_of`` returns it, it shares the memory of the module's weights and follows them as they are trained.
    r is the rank.
    """

    down: Tensor  # (r, in)
    up: Tensor  # (out, r)
    scale: float

    def like(self, weight: Tensor) -> LiveAdapter:
        return LiveAdapter(self.down.to(weight.dtype), self.up.to(weight.dtype), self.scale)

    def thin(self) -> ThinProduct:
        return ThinProduct(self.down, self.up, self.scale)


def dense_of(module: nn.Module) -> nn.Linear | None:
    """Returns the module's plain matrix, None if it is applied in another way than x Wᵀ + b + s (x Aᵀ) Bᵀ."""
    base: Any = module
    if is_adapted_layer(module):
        base = module.get_base_layer()
        if any(name in module.lora_variant for name in module.active_adapters):
            return None  # such as DoRA
    plain = isinstance(base, nn.Linear) and type(base).forward is nn.Linear.forward
    return base if plain else None


def adapters_of(module: nn.Module) -> list[LiveAdapter]:
    """Returns the adapters that are active and not already merged into the module's weight."""
    if not is_adapted_layer(module) or module.merged or module.disable_adapters:
        return []
    adapted: Any = module
    return [
        LiveAdapter(
            adapted.lora_A[name].weight.detach(), adapted.lora_B[name].weight.detach(), float(module.scaling[name])
        )
        for name in module.active_adapters
        if name in module.lora_A
    ]


def pack_heads(packed: Tensor, sources: Sequence[Tensor], shape: ModelShape) -> None:
    """Writes queries', keys' and values' rows into ``packed``, (kv heads, queries + 2, size, ...), in its order.

    ``sources`` are the three, (heads × size, ...) each, or one in which each head has its query, key and value.
    """
    rest = packed.shape[3:]
    if len(sources) == 1:
        queries, keys, values = sources[0].reshape(shape.kv_heads, 3, shape.head_size, *rest).unbind(1)
    else:
        queries, keys, values = (
            source.reshape(shape.kv_heads, -1, shape.head_size, *rest).squeeze(1) for source in sources
        )
    queries = queries.reshape(shape.kv_heads, shape.queries, shape.head_size, *rest)
    interleave(packed[:, :-2].movedim(2, -1), queries.movedim(2, -1), shape.rotated)
    interleave(packed[:, -2].movedim(1, -1), keys.movedim(1, -1), shape.rotated)
    packed[:, -1] = values


def interleave(target: Tensor, source: Tensor, rotated: int) -> None:
    """Copies (..., size) so that coordinates i and i + rotated/2, which are rotated together, become neighbours."""
    half = rotated // 2
    target[..., 0:rotated:2] = source[..., :half]
    target[..., 1:rotated:2] = source[..., half:rotated]
    target[..., rotated:] = source[..., rotated:]


def _merged(weight: Tensor, adapters: Sequence[LiveAdapter]) -> Tensor:
    """Returns W + Σ s B A, summed in the wider dtype of the two; W itself without adapters."""
    merged = weight.detach()
    for each in adapters:
        merged = torch.add(merged, each.up @ each.down, alpha=each.scale).to(weight.dtype)
    return merged


def _norm(module: Any) -> Norm:
    bias = getattr(module, "bias", None)
    return Norm(module.weight.detach(), None if bias is None else bias.detach())
