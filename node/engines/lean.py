"""A decoder without a framework: the model's own equations on packed weights and a cache that is written in place.

At a few million parameters a step's cost is not arithmetic but the number of operations and the bytes of the cache.
Therefore one step is about fourteen operations a layer, keys and values are written into their slot by one copy, each
row that leaves costs the copy of one row, and attention reads only the slots of rows in the batch. The result equals
that of transformers' forward pass within rounding; a test checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from node.engines.architectures import Affine, Architecture, LayerWeights, pack_weights, packing_order, shape_of
from node.engines.decoder import Prefilled, right_aligned
from node.kernels.products import products_for

Cache = tuple[Tensor, Tensor]  # keys and values
# oneDNN compiles a kernel for each number of rows that it meets; multiples of this keep them few.
ROW_MULTIPLE: Final = 8
SLOT_MULTIPLE: Final = 32  # so that calls of similar length share a cache


class LeanDecoder:
    """``Decoder`` for the architectures of ``node.engines.architectures``.

    ``refresh`` copies the weights: later changes of the learner's modules take effect at the next ``refresh``.
    """

    def __init__(self, model: PreTrainedModel, architecture: Architecture) -> None:
        self._model = model
        self._architecture = architecture
        self._device, self._dtype = model.device, model.dtype
        self._rotary = model.get_submodule(architecture.rotary)
        self._products = products_for(self._device, self._dtype)
        cosines, _ = self._angles(1)
        self._shape = shape_of(model.config, architecture, rotated=cosines.shape[-1])
        fused = len(architecture.queries_keys_values) == 1
        self._order = packing_order(self._shape, fused=fused).to(self._device)
        self._scale = self._shape.head_size**-0.5
        # On a CPU, bmm is faster for small float32 matrices than the fused attention kernel, made for long queries.
        self._small_products = self._device.type == "cpu" and self._dtype == torch.float32
        self._rotations = torch.empty(0)
        self._rows = 0
        self.release()
        self.refresh()

    def refresh(self) -> None:
        with torch.inference_mode():
            self._weights = pack_weights(self._model, self._architecture, self._shape, self._order)

    def begin(self, rows: int, longest_prompt: int, longest_completion: int, *, crowded: bool) -> None:
        longest = longest_prompt + longest_completion
        # A crowded batch outlives its first rows: spare slots postpone the moment when the timeline must be moved back.
        slots = longest + max(64, longest // 4) if crowded else longest
        self._make_room(-(-rows // ROW_MULTIPLE) * ROW_MULTIPLE, slots)
        self._longest_prompt = longest_prompt
        if self._rotations.shape[0] < self._slots:
            self._rotations = self._rotation_table(self._slots)
        self._tokens = torch.zeros(self._room, dtype=torch.int64, device=self._device)
        self._start = torch.zeros(self._room, dtype=torch.int64, device=self._device)  # slot of each row's first token
        self._starts = np.zeros(self._room, dtype=np.int64)  # the same in host memory: reading it costs no transfer
        self._mask.zero_()
        self._now = longest_prompt
        self._rows = 0

    def release(self) -> None:
        self._room = self._slots = 0
        self._keys = self._values = self._mask = torch.empty(0)
        self._layer_keys: Sequence[Tensor] = ()  # a layer: (room × kv heads, slots, size)
        self._layer_values: Sequence[Tensor] = ()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Prefilled[Cache]:
        shape = self._shape
        ids, padding = right_aligned(prompts, self._device)  # (P, L), (P,)
        count, length = ids.shape
        slots = torch.arange(length, device=self._device)
        rotations = self._rotation_table(length)[(slots - padding[:, None]).clamp_(min=0)]  # (P, L, size / 2)
        seen = (slots[None, :] <= slots[:, None]) & (slots >= padding[:, None, None])  # (P, L, L)
        seen |= torch.eye(length, dtype=torch.bool, device=self._device)  # padding attends to itself: no empty softmax
        size = (shape.layers, count, shape.kv_heads, length, shape.head_size)
        all_keys, all_values = (torch.empty(size, dtype=self._dtype, device=self._device) for _ in range(2))
        x = functional.embedding(ids.flatten(), self._weights.embedding)
        rotations = rotations.flatten(0, 1)
        for index, layer in enumerate(self._weights.layers):
            heads = self._heads(x, layer, rotations)  # (P × L, kv heads, queries + 2, size)
            by_prompt = heads.view(count, length, *heads.shape[1:]).permute(0, 2, 3, 1, 4)
            all_keys[index], all_values[index] = by_prompt[:, :, -2], by_prompt[:, :, -1]
            queries = by_prompt[:, :, : shape.queries].flatten(1, 2)  # (P, query heads, L, size)
            keys = by_prompt[:, :, -2].repeat_interleave(shape.queries, dim=1)
            values = by_prompt[:, :, -1].repeat_interleave(shape.queries, dim=1)
            mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen[:, None])
            x = self._rest_of_layer(x, mixed.transpose(1, 2).reshape(count * length, -1), layer)
        last = x.view(count, length, -1)[:, -1]
        return Prefilled(self._logits(last), tuple(len(prompt) for prompt in prompts), (all_keys, all_values))

    def join(self, prefilled: Prefilled[Cache], which: Sequence[int]) -> None:
        first, self._rows = self._rows, self._rows + len(which)
        chosen = torch.tensor(which, device=self._device)
        for cache, computed in zip((self._keys, self._values), prefilled.cache, strict=True):
            slots = slice(self._now - computed.shape[-2], self._now)
            cache[:, first : self._rows, :, slots] = computed.index_select(1, chosen)
        self._starts[first : self._rows] = [self._now - prefilled.lengths[i] for i in which]
        self._membership_changed(slice(first, self._rows))

    def leave(self, holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        self._rows = rows
        if len(holes):
            into, source = (torch.tensor(indices, device=self._device) for indices in (holes, tails))
            used = slice(int(self._starts[list(tails)].min()), self._now)
            for cache in (self._keys, self._values):
                cache[:, into, :, used] = cache[:, source, :, used]
            self._mask[into] = self._mask[source]
            self._start[into] = self._start[source]
            self._starts[list(holes)] = self._starts[list(tails)]
        self._window()

    def step(self, tokens: Tensor) -> Tensor:
        if self._now == self._slots:
            self._move_back()
        count = -(-self._rows // ROW_MULTIPLE) * ROW_MULTIPLE
        self._tokens[: self._rows].copy_(tokens)
        rotations = self._rotations.index_select(0, self._now - self._start[:count])
        x = functional.embedding(self._tokens[:count], self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            heads = self._heads(x, layer, rotations)  # (n, kv heads, queries + 2, size)
            self._keys[index, :count, :, self._now].copy_(heads[:, :, -2])
            self._values[index, :count, :, self._now].copy_(heads[:, :, -1])
            x = self._rest_of_layer(x, self._attend(heads, index, count), layer)
        self._now += 1
        return self._logits(x)[: self._rows]

    def _heads(self, x: Tensor, layer: LayerWeights, rotations: Tensor) -> Tensor:
        """Returns each key-value head's rotated queries, rotated key and value, (n, kv heads, queries + 2, size)."""
        shape = self._shape
        projection = layer.queries_keys_values
        joined = self._products.plain(self._norm(x, layer.attention_norm), projection.weight, projection.bias)
        heads = joined.view(-1, shape.kv_heads, shape.queries + 2, shape.head_size)
        rotating = heads[:, :, :-1]
        if layer.head_scale is not None:
            normed = functional.rms_norm(rotating, (shape.head_size,), None, shape.epsilon)
            torch.mul(normed, layer.head_scale, out=rotating)
        if self._dtype == torch.float32:
            torch.view_as_complex(rotating.view(*rotating.shape[:-1], -1, 2)).mul_(rotations[:, None, None])
        else:
            pairs = torch.view_as_complex(rotating.float().view(*rotating.shape[:-1], -1, 2))
            rotating.copy_(torch.view_as_real(pairs * rotations[:, None, None]).flatten(-2))
        return heads

    def _attend(self, heads: Tensor, index: int, count: int) -> Tensor:
        """Returns attention's output for each row's newest token over its own past, (n, query heads × size)."""
        shape, window = self._shape, slice(self._first, self._now + 1)
        rows = count * shape.kv_heads
        keys, values = self._layer_keys[index][:rows, window], self._layer_values[index][:rows, window]
        queries = heads.view(rows, shape.queries + 2, shape.head_size)[:, :-2]
        mask = self._mask.view(-1, 1, self._slots)[:rows, :, window]
        if self._small_products:
            weight = 1 if self._ragged else 0
            scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), beta=weight, alpha=self._scale)
            return torch.bmm(torch.softmax(scores, -1), values).view(count, -1)
        mixed = functional.scaled_dot_product_attention(
            queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask.unsqueeze(0)
        )
        return mixed.reshape(count, -1)

    def _rest_of_layer(self, x: Tensor, mixed: Tensor, layer: LayerWeights) -> Tensor:
        """Adds the output projection, the MLP and both residuals."""
        products, shape = self._products, self._shape
        after = products.plus(mixed, layer.attention_output.weight, layer.attention_output.bias, x)
        normed = self._norm(x if shape.parallel else after, layer.mlp_norm)
        opened = layer.up if layer.gate is None else layer.gate
        inner = products.activated(normed, opened.weight, opened.bias, shape.activation)
        if layer.gate is not None:
            inner = products.times(normed, layer.up.weight, layer.up.bias, inner)
        return products.plus(inner, layer.down.weight, layer.down.bias, after)

    def _norm(self, x: Tensor, norm: Affine) -> Tensor:
        if self._shape.root_mean_square:
            return functional.rms_norm(x, x.shape[-1:], norm.weight, self._shape.epsilon)
        return functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, self._shape.epsilon)

    def _logits(self, x: Tensor) -> Tensor:
        head = self._weights.head
        return self._products.plain(self._norm(x, self._weights.final_norm), head.weight, head.bias)

    def _membership_changed(self, rows: slice) -> None:
        """Updates, for ``rows``, what is derived from ``_starts``."""
        starts = torch.from_numpy(self._starts[rows].copy()).to(self._device)
        self._start[rows] = starts
        unseen = torch.arange(self._slots, device=self._device) < starts[:, None]
        self._mask[rows] = torch.zeros_like(unseen, dtype=self._dtype).masked_fill_(unseen, -torch.inf)[:, None]
        self._window()

    def _window(self) -> None:
        """Sets which slots the rows in the batch need, and whether some row starts later than others."""
        present = self._starts[: self._rows]
        self._first = int(present.min()) if self._rows else self._now
        self._ragged = bool((present != self._first).any())

    def _move_back(self) -> None:
        """Moves the rows' slots to the front, leaving room for the longest prompt before the newest token."""
        length = self._now - self._first
        moved = max(self._longest_prompt, length)
        for cache in (self._keys, self._values):
            cache[:, :, :, moved - length : moved] = cache[:, :, :, self._first : self._now].clone()
        self._starts = np.maximum(self._starts - (self._now - moved), 0)
        self._now = moved
        self._membership_changed(slice(0, self._room))

    def _make_room(self, rows: int, slots: int) -> None:
        """Makes the cache at least this large; the present one is kept unless it is too small or twice too large.

        It is filled with zeros: a masked slot has weight 0, and 0 times a NaN would be a NaN. For small products the
        keys lie transposed in memory: a step's time is spent reading them, and this halves it.
        """
        if rows <= self._room <= 2 * rows and slots <= self._slots <= 2 * slots:
            return
        self._room, self._slots = rows, -(-slots // SLOT_MULTIPLE) * SLOT_MULTIPLE
        layers, heads, size = self._shape.layers, self._shape.kv_heads, self._shape.head_size

        def zeros(*dimensions: int) -> Tensor:
            return torch.zeros(dimensions, dtype=self._dtype, device=self._device)

        if self._small_products:
            self._keys = zeros(layers, rows, heads, size, self._slots).transpose(-1, -2)
        else:
            self._keys = zeros(layers, rows, heads, self._slots, size)
        self._values = zeros(layers, rows, heads, self._slots, size)
        self._layer_keys = self._keys.flatten(1, 2).unbind(0)
        self._layer_values = self._values.flatten(1, 2).unbind(0)
        self._mask = zeros(rows, heads, self._slots)

    def _angles(self, length: int) -> tuple[Tensor, Tensor]:
        """Returns cosine and sine of each position's angles as the model computes them, (length, rotated) float32."""
        positions = torch.arange(length, device=self._device).unsqueeze(0)
        cosines, sines = self._rotary(torch.empty(0, device=self._device), positions)
        return cosines[0], sines[0]

    def _rotation_table(self, length: int) -> Tensor:
        """Returns cos + i·sin by position and pair of coordinates, 1 for pairs not rotated, (length, size / 2)."""
        cosines, sines = self._angles(length)
        pairs = self._shape.rotated // 2
        table = torch.ones((length, self._shape.head_size // 2), dtype=torch.complex64, device=self._device)
        table[:, :pairs] = torch.complex(cosines[:, :pairs], sines[:, :pairs])
        return table
