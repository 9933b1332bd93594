"""A decoder without a framework: the model's own equations on packed weights and a cache that is written in place.

At a few million parameters a step's cost is not arithmetic but the number of operations and the bytes of the cache; at
more, it is the bytes of weights and cache. Therefore one step is about twelve operations a layer, in float32 on a CPU
compiled loops between the matrix products (``cpu_decoding``); a row that leaves costs the copy of one row at most, and
attention reads only the slots of rows in the batch. What a row of a conversation reads between its actions is computed
in the same pass as the others' next tokens. A long prompt is read once for all the rows that continue it
(``shared_prompts``). The result equals that of transformers' forward pass within rounding; a test checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from node.engines.cache_size import NO_CACHE, AttentionShape, CachePlan, plan_cache
from node.engines.decoder import Drafts, OneBatch, Parted, Prefilled, right_aligned
from node.engines.lean.architectures import Architecture, ModelShape, shape_of
from node.engines.lean.attention import attention_for, by_causal_products, empty_mask, joined
from node.engines.lean.device_rows import DevicePass, DevicePrompts, DeviceRows
from node.engines.lean.packing import LayerWeights, Norm, WeightPacker
from node.engines.lean.passes import Pass, RowPositions, Run
from node.engines.lean.rotations import Rotations
from node.engines.lean.row_slots import RowSlots
from node.engines.lean.seated_prompts import SeatedPrompts
from node.engines.lean.step_graphs import StepGraphs, graph_rows, recorder_for
from node.engines.lean.step_kernels import step_kernels_for
from node.engines.lean.timeline import RowTimeline
from node.kernels.cpu_decoding import HEAD_MULTIPLE, NO_OTHER_PART, NO_SCALE, attend, rms_norm, rotate_heads
from node.kernels.products import products_for

# Keys and values of prompts that each row will hold itself, (layers, P, kv heads, L, size); or names of shared prompts.
Cache = tuple[Tensor, Tensor] | list[int]


class LeanDecoder(OneBatch):
    """``Decoder`` for the architectures of ``node.engines.lean.architectures``.

    It reads the live weights, except for copies of those that are packed (``packing``). Memory: those copies
    (``copied_bytes``), from ``begin`` to ``release`` the cache of ``cache_size.plan_cache`` (``cache_bytes``), which is
    kept for a later ``begin`` that needs at least half of it, and the tables of rotations.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        architecture: Architecture,
        *,
        merge_adapters: bool = True,
        shared_prompts: bool | None = None,
    ) -> None:
        self._device, self._dtype = model.device, model.dtype
        self._rotations = Rotations(model.get_submodule(architecture.rotary), self._device)
        self._shape: Final[ModelShape] = shape_of(model.config, architecture, self._rotations.rotated)
        products = products_for(self._device, self._dtype)
        self._packer = WeightPacker(model, architecture, self._shape, products, merge_adapters=merge_adapters)
        self._shared_prompts = shared_prompts  # None: the layout that ``plan_cache`` chooses
        self._attention = attention_for(self._device)
        exact_on_cpu = self._device.type == "cpu" and self._dtype == torch.float32
        self._kernels = step_kernels_for(self._shape, self._device, self._dtype)
        self._compiled = exact_on_cpu and self._shape.head_size % HEAD_MULTIPLE == 0 and self._kernels is None
        self._graphs = StepGraphs(self._step_by_kernels, recorder_for(self._device) if self._kernels else None)
        self._store: Tensor
        self._plan: CachePlan
        self._rows: RowTimeline | RowSlots | DeviceRows
        self._prompts: SeatedPrompts | DevicePrompts | None
        self._divide(torch.empty(0, dtype=self._dtype, device=self._device), NO_CACHE, 0)
        self._without_rows = self._store, self._rows
        self.refresh()

    def refresh(self) -> None:
        self._graphs.forget()
        self._weights = self._packer.pack()

    def release(self) -> None:
        self._graphs.forget()
        self._store, self._rows = self._without_rows
        self._prompts = None

    @property
    def copied_bytes(self) -> int:
        return self._packer.copied_bytes

    @property
    def cache_bytes(self) -> int:
        return self._store.nbytes + self._rows.mask_bytes + (self._prompts.mask_bytes if self._prompts else 0)

    @property
    def attention_shape(self) -> AttentionShape:
        return self._shape.attention(self._dtype.itemsize, masked_rows=self._kernels is None and not self._compiled)

    @property
    def free_prompts(self) -> int | None:
        return None if self._prompts is None else self._prompts.free

    def begin(self, rows: int, completions: Sequence[int], longest_prompt: int, longest_completion: int) -> None:
        self._graphs.forget()
        plan = plan_cache(rows, completions, longest_prompt, longest_completion, shared=self._shared_prompts)
        self._make_room(plan, longest_prompt)
        self._rotations.make_table(plan.prompt_slots + plan.slots, self._shape.head_size)
        self._positions = RowPositions(plan.rows, self._shape.kv_heads * self._shape.queries, self._device)

    def prefill(self, prompts: Sequence[Sequence[int]], completions: Sequence[int]) -> Prefilled[Cache]:
        lengths = [len(prompt) for prompt in prompts]
        if self._prompts is None:
            shape = self._shape
            size = (shape.layers, len(prompts), shape.kv_heads, max(lengths), shape.head_size)
            keys, values = (torch.empty(size, dtype=self._dtype, device=self._device) for _ in range(2))

            def keep(layer: int, new_keys: Tensor, new_values: Tensor) -> None:
                keys[layer], values[layer] = new_keys, new_values

            return Prefilled(self._prompt_logits(prompts, keep), tuple(lengths), (keys, values))
        held = self._prompts
        places, names = held.add(lengths, completions)
        logits = self._prompt_logits(prompts, lambda layer, keys, values: held.write(layer, places, keys, values))
        return Prefilled(logits, tuple(lengths), names)

    def join(self, prefilled: Prefilled[Cache], which: Sequence[int]) -> None:
        lengths = [prefilled.lengths[index] for index in which]
        rows = slice(self._rows.rows, self._rows.rows + len(which))
        places = self._rows.join([0] * len(which) if self._prompts is not None else lengths)
        self._positions.join(rows, lengths)
        if isinstance(prefilled.cache, list):
            assert self._prompts is not None, "computed before begin"
            self._prompts.join(rows, [prefilled.cache[index] for index in which])
        else:
            chosen = torch.tensor(which, device=self._device)
            for cache, computed in zip((self._rows.keys, self._rows.values), prefilled.cache, strict=True):
                slots = slice(self._rows.joins_at - computed.shape[-2], self._rows.joins_at)
                cache[:, places, :, slots] = computed.index_select(1, chosen)

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        into, source = (torch.tensor(indices, dtype=torch.int64, device=self._device) for indices in (holes, tails))
        self._positions.leave(into, source)
        if isinstance(self._rows, RowTimeline):
            self._rows.leave(into, source, (holes, tails), rows)
        else:
            self._rows.leave(ended, holes, tails, rows)
        if self._prompts is not None:
            self._prompts.leave(ended, holes, tails, rows)

    def part(self, rows: Sequence[int]) -> list[Parted]:
        places, positions = self._own_slots.place_of(np.array(rows)), self._positions.positions[list(rows)]
        names = [None if self._prompts is None else self._prompts.name_of(row) for row in rows]
        return [Parted(*each) for each in zip(places.tolist(), positions.tolist(), names, strict=True)]

    def rejoin(self, parted: Sequence[Parted], tokens: Sequence[int]) -> None:
        slots, places = self._own_slots, [each.place for each in parted]
        needed = max(slots.end_of(place) + more for place, more in zip(places, tokens, strict=True))
        if needed > slots.slots:
            self._lengthen(needed)
        rows = slice(slots.rows, slots.rows + len(parted))
        slots.rejoin(places)
        self._positions.join(rows, [each.position for each in parted])
        if self._prompts is not None:
            self._prompts.join(rows, [each.prompt for each in parted if each.prompt is not None])

    def drop(self, parted: Parted) -> None:
        self._own_slots.free([parted.place])
        if self._prompts is not None and parted.prompt is not None:
            self._prompts.drop(parted.prompt, self._own_slots.rows)

    @property
    def _own_slots(self) -> RowSlots:
        assert isinstance(self._rows, RowSlots), "rows without ends of their own do not part"
        return self._rows

    @property
    def verifies_drafts(self) -> bool:
        return isinstance(self._rows, RowSlots)

    def step(self, tokens: Tensor, drafts: Drafts | None = None) -> Tensor:
        if isinstance(self._rows, DeviceRows):
            return self._step_on_device(tokens, drafts, self._rows)
        if isinstance(self._rows, RowTimeline):
            self._rows.make_room()
        of_pass = self._positions.next_pass(tokens, drafts, self._rows, self._prompts)
        x = functional.embedding(of_pass.tokens, self._weights.embedding)
        rotations = self._rotations.at(of_pass.positions)
        for index, layer in enumerate(self._weights.layers):
            heads = self._heads(x, layer, rotations)  # (n, kv heads, queries + 2, size)
            mixed = self._attend_compiled(heads, index, of_pass) if self._compiled else self._attend(heads, index)
            if index == len(self._weights.layers) - 1 and of_pass.read is not None:
                x, mixed = x[of_pass.read], mixed[of_pass.read]
            x = self._rest_of_layer(x, mixed, layer)
        self._advance(1 if drafts is None else drafts.counts + 1)
        return self._logits(x)[: of_pass.wanted]

    def _step_on_device(self, tokens: Tensor, drafts: Drafts | None, rows: DeviceRows) -> Tensor:
        if drafts is not None:
            logits = self._by_kernels(
                DevicePass.of_drafts(tokens, drafts, self._positions.positions, rows, self._device_prompts)
            )
            self._advance(drafts.counts + 1)
            return logits
        present = rows.rows
        self._positions.tokens[:present].copy_(tokens)
        logits = self._graphs.logits(graph_rows(present, len(self._positions.tokens)))
        self._advance(1)
        return logits[:present]

    def _step_by_kernels(self, count: int) -> Tensor:
        """Returns the logits after the newest tokens of the first ``count`` rows, present or not."""
        rows, prompts, of_rows = self._own_slots, self._device_prompts, self._positions
        assert isinstance(rows, DeviceRows)
        places = None if prompts is None else prompts.device_places
        return self._by_kernels(DevicePass(of_rows.tokens[:count], rows.seats, of_rows.positions, places))

    def _by_kernels(self, of_pass: DevicePass) -> Tensor:
        x = functional.embedding(of_pass.tokens, self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            mixed = self._attend_by_kernels(x, layer, index, of_pass)
            if index == len(self._weights.layers) - 1 and of_pass.read is not None:
                x, mixed = x[of_pass.read], mixed[of_pass.read]
            x = self._rest_of_layer(x, mixed, layer)
        return self._logits(x)

    @property
    def _device_prompts(self) -> DevicePrompts | None:
        assert not isinstance(self._prompts, SeatedPrompts)
        return self._prompts

    def take_back(self, counts: NDArray[np.int64]) -> None:
        self._advance(-counts)

    def _advance(self, tokens: NDArray[np.int64] | int) -> None:
        self._rows.advance(tokens)
        self._positions.advance(tokens)

    def _prompt_logits(self, prompts: Sequence[Sequence[int]], keep: Callable[[int, Tensor, Tensor], None]) -> Tensor:
        """Returns the logits after each prompt, (P, V); ``keep(layer, keys, values)``, (P, kv heads, L, size) each."""
        shape = self._shape
        ids, padding = right_aligned(prompts, self._device)  # (P, L), (P,)
        count, length = ids.shape
        slots = torch.arange(length, device=self._device)
        rotations = self._rotations.at((slots - padding[:, None]).clamp_(min=0).flatten())  # (P × L, size / 2)
        seen = None
        if min(map(len, prompts)) < length:
            seen = (slots[None, :] <= slots[:, None]) & (slots >= padding[:, None, None])  # (P, L, L)
            seen |= torch.eye(length, dtype=torch.bool, device=self._device)  # padding sees itself: no empty softmax
            seen = seen[:, None]
        x = functional.embedding(ids.flatten(), self._weights.embedding)
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            heads = self._heads(x, layer, rotations)  # (P × L, kv heads, queries + 2, size)
            by_prompt = heads.view(count, length, *heads.shape[1:]).permute(0, 2, 3, 1, 4)
            keep(index, by_prompt[:, :, -2], by_prompt[:, :, -1])
            # Of the last layer nobody reads more than the newest token.
            newest = slice(length - 1, length) if index == last else slice(0, length)
            queries = by_prompt[:, :, : shape.queries, newest].flatten(1, 2)  # (P, query heads, L or 1, size)
            keys = by_prompt[:, :, -2].repeat_interleave(shape.queries, dim=1)
            values = by_prompt[:, :, -1].repeat_interleave(shape.queries, dim=1)
            mask = None if seen is None else seen[:, :, newest]
            causal = seen is None and index != last
            mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)
            x = x.view(count, length, -1)[:, newest].flatten(0, 1)
            x = self._rest_of_layer(x, mixed.transpose(1, 2).flatten(0, 1).flatten(1), layer)
        return self._logits(x)

    def _heads(self, x: Tensor, layer: LayerWeights, rotations: Tensor) -> Tensor:
        """Returns each key-value head's rotated queries, rotated key and value, (n, kv heads, queries + 2, size)."""
        shape, heads = self._shape, self._unrotated(x, layer)
        if self._compiled:
            scale = NO_SCALE if layer.head_scale is None else layer.head_scale.numpy()
            rotate_heads(heads.numpy(), scale, torch.view_as_real(rotations).flatten(1).numpy(), shape.epsilon)
            return heads
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

    def _unrotated(self, x: Tensor, layer: LayerWeights) -> Tensor:
        """Returns each key-value head's queries, key and value, (n, kv heads, queries + 2, size)."""
        shape = self._shape
        joint = layer.queries_keys_values.plain(self._norm(x, layer.attention_norm))
        return joint.view(-1, shape.kv_heads, shape.queries + 2, shape.head_size)

    def _attend_by_kernels(self, x: Tensor, layer: LayerWeights, index: int, of_pass: DevicePass) -> Tensor:
        """Keeps each token's key and value. Returns attention's output over its past, (n, query heads × size)."""
        rows, prompts = self._rows, self._device_prompts
        assert self._kernels is not None and isinstance(rows, DeviceRows)
        heads, table = self._unrotated(x, layer), self._rotations.angles
        return self._kernels.attend(heads, layer.head_scale, table, index, rows, prompts, of_pass)

    def _attend(self, heads: Tensor, index: int) -> Tensor:
        """Writes each row's newest key and value. Returns attention's output over its past, (n, query heads × size)."""
        shape, count, timeline = self._shape, len(heads), self._rows
        assert isinstance(timeline, RowTimeline)
        timeline.write(index, count, heads[:, :, -2], heads[:, :, -1])
        batches = count * shape.kv_heads
        past = timeline.past(index, batches)
        queries = heads.view(batches, shape.queries + 2, shape.head_size)[:, :-2]
        if isinstance(self._prompts, SeatedPrompts):
            own, own_logs = self._attention(queries, past)
            mixed = joined(own, own_logs, *self._prompts.attend(queries, index))
        else:
            mixed = functional.scaled_dot_product_attention(
                queries.unsqueeze(0), past.keys.unsqueeze(0), past.values.unsqueeze(0), attn_mask=past.mask.unsqueeze(0)
            )
        return mixed.reshape(count, -1)

    def _attend_compiled(self, heads: Tensor, index: int, of_pass: Pass) -> Tensor:
        """The same in one call, except for attention over shared prompts and of rows that read much; a row may have
        several positions."""
        shape, rows = self._shape, self._own_slots
        other: tuple[Tensor, Tensor] | None = None
        part = NO_OTHER_PART
        if of_pass.seats is not None:
            assert isinstance(self._prompts, SeatedPrompts)
            queries = heads[:, :, :-2].flatten(0, 1)
            other = self._prompts.attend_by_prompt(queries, index, of_pass.seats)
            part = other[0].numpy(), other[1].numpy(), of_pass.seats.places.numpy()
        mixed = torch.empty((len(heads), shape.kv_heads, shape.queries, shape.head_size))
        host = rows.host_layers[index]
        attend(heads.numpy(), *host, rows.starts, of_pass.places, of_pass.slots, *part, mixed.numpy())
        for run in of_pass.runs:
            own, logs = self._attend_run(heads[run.positions], index, run, logs_wanted=other is not None)
            asked = slice(run.positions.stop - own.shape[1], run.positions.stop)
            mixed[asked] = own.transpose(0, 1)
            if other is not None and logs is not None and of_pass.seats is not None:
                places = of_pass.seats.places.view(-1, shape.kv_heads)[asked]
                mixed[asked] = joined(mixed[asked], logs.transpose(0, 1), other[0][places], other[1][places])
        return mixed.flatten(1)

    def _attend_run(self, heads: Tensor, index: int, run: Run, *, logs_wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Writes the keys and values of one row's positions. Returns attention's output over its slots,
        (kv heads, positions, queries, size), and its logarithms; of the last layer for the last position alone."""
        rows, heads = self._own_slots, heads.transpose(0, 1)  # (kv heads, positions, queries + 2, size)
        count = heads.shape[1]
        keys, values = (cache[index, run.place, :, run.slots] for cache in (rows.keys, rows.values))
        keys[:, -count:], values[:, -count:] = heads[:, :, -2], heads[:, :, -1]
        asking = heads[:, -1:, :-2] if index == self._shape.layers - 1 else heads[:, :, :-2]
        return by_causal_products(asking, keys, values, count, logs_wanted=logs_wanted)

    def _rest_of_layer(self, x: Tensor, mixed: Tensor, layer: LayerWeights) -> Tensor:
        """Adds the output projection, the MLP and both residuals."""
        after = layer.attention_output.plus(mixed, x)
        normed = self._norm(x if self._shape.parallel else after, layer.mlp_norm)
        if layer.gate is None:
            inner = layer.up.activated(normed, self._shape.activation)
        elif self._kernels is not None:
            inner = self._kernels.gate(layer.gate.plain(normed), layer.up.plain(normed))
        else:
            inner = layer.up.times(normed, layer.gate.activated(normed, self._shape.activation))
        return layer.down.plus(inner, after)

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        if self._compiled and self._shape.root_mean_square:
            result = torch.empty_like(x)
            rms_norm(x.numpy(), norm.weight.numpy(), self._shape.epsilon, result.numpy())
            return result
        if self._shape.root_mean_square:
            return functional.rms_norm(x, x.shape[-1:], norm.weight, self._shape.epsilon)
        return functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, self._shape.epsilon)

    def _logits(self, x: Tensor) -> Tensor:
        return self._weights.head.plain(self._norm(x, self._weights.final_norm))

    def _lengthen(self, slots: int) -> None:
        """Afterwards each row has at least so many slots, and at least one and a half times as many as before."""
        self._graphs.forget()
        plan = self._plan.with_slots(max(slots, self._plan.slots * 3 // 2))
        parts = plan.parts(self.attention_shape)
        store = torch.zeros(sum(parts), dtype=self._dtype, device=self._device)
        own_keys, own_values, keys, values = torch.split(store, list(parts))
        self._own_slots.move(*self._divided(own_keys, own_values, plan.rows, plan.slots, transposed=self._compiled))
        if self._prompts is not None:
            self._prompts.move(*self._divided(keys, values, plan.prompts, plan.prompt_slots, transposed=False))
        self._rotations.make_table(plan.prompt_slots + plan.slots, self._shape.head_size)
        self._store, self._plan = store, plan

    def _make_room(self, plan: CachePlan, longest_prompt: int) -> None:
        """Makes the cache as planned. What an earlier call left in it is finite, as its first zeros are: a masked slot
        has weight 0, and 0 times a NaN would be a NaN."""
        needed = sum(plan.parts(self.attention_shape))
        store = self._store
        if not needed <= len(store) <= 2 * needed:
            del store
            self.release()  # the old one is given back before there is a new one
            store = torch.zeros(needed, dtype=self._dtype, device=self._device)
        self._divide(store, plan, longest_prompt)

    def _divide(self, store: Tensor, plan: CachePlan, longest_prompt: int) -> None:
        parts = plan.parts(self.attention_shape)
        own_keys, own_values, keys, values = torch.split(store[: sum(parts)], list(parts))
        lead = 0 if plan.shared else longest_prompt
        self._store, self._plan = store, plan
        rows = (plan.rows, plan.slots)
        own = self._divided(own_keys, own_values, *rows, transposed=self._compiled)
        if self._kernels is not None:
            self._rows = DeviceRows(*own, lead=lead)
        elif self._compiled:
            self._rows = RowSlots(*own, lead=lead)
        else:
            self._rows = RowTimeline(*own, self._mask(*rows), lead=lead)
        self._prompts = None
        if plan.shared:
            prompts = (plan.prompts, plan.prompt_slots)
            held = self._divided(keys, values, *prompts, transposed=False)
            self._prompts = (
                SeatedPrompts(*held, self._mask(*prompts), rows=plan.rows, attention=self._attention)
                if self._kernels is None
                else DevicePrompts(*held, rows=plan.rows)
            )

    def _divided(
        self, keys: Tensor, values: Tensor, count: int, slots: int, *, transposed: bool
    ) -> tuple[Tensor, Tensor]:
        """Returns keys and values of ``count`` rows or prompts.

        ``transposed`` keys lie in memory with a coordinate's slots side by side, as compiled attention reads them.
        """
        shape = self._shape
        outer = (shape.layers, count, shape.kv_heads)
        if transposed:
            divided_keys = keys.view(*outer, shape.head_size, slots).transpose(-1, -2)
        else:
            divided_keys = keys.view(*outer, slots, shape.head_size)
        return divided_keys, values.view(*outer, slots, shape.head_size)

    def _mask(self, count: int, slots: int) -> Tensor:
        return empty_mask(count, self._shape.kv_heads, slots, self._dtype, self._device)
