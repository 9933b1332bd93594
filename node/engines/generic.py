"""A decoder for every causal model whose state is keys and values: transformers' own forward pass.

It differs from the lean decoder in being slower at small sizes, and in that each row holds its prompt: transformers'
own attention wants all keys of a row in one tensor, and measures a sliding window by slots, so that a row may have no
holes. What joins and leaves is written once, a layer at a time. Models that keep another kind of state (recurrent,
convolutional) cannot be aligned on a shared timeline and are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from node.engines.decoder import Drafts, Parted, Prefilled, right_aligned
from protocol.errors import ConfigurationError

Layers = list[tuple[Tensor, Tensor]]  # keys and values of each layer, (rows, kv heads, slots, size)


class GenericDecoder:
    """``Decoder`` over ``model(...)``, for decoders whose layers keep keys and values (rows, kv heads, slots, size).

    It reads the live modules, so ``refresh`` does nothing. Rows hold their own prompts: ``free_prompts`` is None.
    Raises ``ConfigurationError``, when it is made, for a model with layers that keep another kind of state.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        kinds = {type(layer) for layer in DynamicCache(config=model.config).layers}
        if others := kinds - {DynamicLayer, DynamicSlidingWindowLayer}:
            names = ", ".join(sorted(kind.__name__ for kind in others))
            raise ConfigurationError(
                f"the model type {model.config.model_type} keeps a state that is not keys and values ({names}): the "
                "torch engine cannot batch it; choose a model with attention layers only"
            )
        self._model: Final = model
        self._device: Final = model.device
        self._no_rows: Final = torch.zeros((0, 0), dtype=torch.int64, device=self._device)
        accepted = inspect.signature(model.forward).parameters
        self._last_only: Final = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._with_positions: Final = "position_ids" in accepted

    def refresh(self) -> None:
        return

    def begin(self, rows: int, completions: Sequence[int], longest_prompt: int, longest_completion: int) -> None:
        self.release()

    def release(self) -> None:
        self._cache: DynamicCache | None = None
        # (rows, slots) 1 where a row has a token
        self._seen = self._no_rows

    @property
    def cache_bytes(self) -> int:
        layers = [] if self._cache is None else _layers(self._cache)
        return self._seen.nbytes + sum(keys.nbytes + values.nbytes for keys, values in layers)

    @property
    def free_prompts(self) -> None:
        return None

    def prefill(self, prompts: Sequence[Sequence[int]], completions: Sequence[int]) -> Prefilled[Layers]:
        ids, padding = right_aligned(prompts, self._device)
        seen = (torch.arange(ids.shape[1], device=self._device) >= padding[:, None]).long()
        cache = DynamicCache()
        logits = self._forward(ids, seen, cache)
        return Prefilled(logits, tuple(len(prompt) for prompt in prompts), _layers(cache))

    def join(self, prefilled: Prefilled[Layers], which: Sequence[int]) -> None:
        chosen = torch.tensor(which, device=self._device)
        length = prefilled.cache[0][0].shape[-2]
        slots = max(length, self._seen.shape[1])
        lengths = torch.tensor(prefilled.lengths, device=self._device)[chosen]
        joining_seen = (torch.arange(slots, device=self._device) >= slots - lengths[:, None]).long()
        merged = DynamicCache()
        for index, new in enumerate(prefilled.cache):
            old = (None, None) if self._cache is None else _taken(self._cache, index)
            keys, values = (_joined(*each, chosen, slots) for each in zip(old, new, strict=True))
            merged.layers.append(_layer(keys, values))
        old_seen = functional.pad(self._seen, (slots - self._seen.shape[1], 0))
        self._cache, self._seen = merged, torch.cat([old_seen, joining_seen])

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        if self._cache is None:
            return
        order = torch.arange(rows, device=self._device)
        order[list(holes)] = torch.tensor(list(tails), dtype=torch.int64, device=self._device)
        seen = self._seen[order]
        empty = int((seen.any(0)).long().argmax()) if rows else 0  # slots in front that no remaining row uses
        kept = DynamicCache()
        if rows:
            for index in range(len(self._cache.layers)):
                keys, values = _taken(self._cache, index)
                kept.layers.append(_layer(keys[order, :, empty:], values[order, :, empty:]))
        self._cache, self._seen = (kept, seen[:, empty:]) if rows else (None, self._seen[:0, :0])

    @property
    def verifies_drafts(self) -> bool:
        return False

    def take_back(self, counts: NDArray[np.int64]) -> None:
        raise AssertionError("it was given no drafts")

    def part(self, rows: Sequence[int]) -> list[Parted]:
        raise AssertionError("its rows do not part")

    def rejoin(self, parted: Sequence[Parted], tokens: Sequence[int]) -> None:
        raise AssertionError("its rows do not part")

    def drop(self, parted: Parted) -> None:
        raise AssertionError("its rows do not part")

    def step(self, tokens: Tensor, drafts: Drafts | None = None) -> Tensor:
        assert self._cache is not None, "a step needs rows"
        self._seen = functional.pad(self._seen, (0, 1), value=1)
        return self._forward(tokens[:, None], self._seen, self._cache)

    def _forward(self, ids: Tensor, seen: Tensor, cache: DynamicCache) -> Tensor:
        """Returns the logits after the last of ``ids``, (rows, V); ``seen`` covers the past and ``ids``."""
        positions = (seen.cumsum(-1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
        more = self._last_only | ({"position_ids": positions} if self._with_positions else {})
        output = self._model(input_ids=ids, attention_mask=seen, past_key_values=cache, use_cache=True, **more)
        logits: Tensor = output.logits[:, -1]
        return logits


def _layers(cache: DynamicCache) -> Layers:
    return [_held(layer) for layer in cache.layers]


def _held(layer: object) -> tuple[Tensor, Tensor]:
    assert isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None, "never filled"
    return layer.keys, layer.values


def _taken(cache: DynamicCache, index: int) -> tuple[Tensor, Tensor]:
    """Returns keys and values of a layer, which the cache no longer holds: they are freed once they are copied."""
    taken = _held(cache.layers[index])
    cache.layers[index] = DynamicLayer()  # type: ignore[no-untyped-call]
    return taken


def _layer(keys: Tensor, values: Tensor) -> DynamicLayer:
    """Returns a layer that holds these tensors themselves; ``update`` would copy them."""
    layer = DynamicLayer()  # type: ignore[no-untyped-call]
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    return layer


def _joined(old: Tensor | None, new: Tensor, chosen: Tensor, slots: int) -> Tensor:
    """Returns the rows of ``old`` and then those ``chosen`` of ``new``, (rows, kv heads, slots, size), all aligned at
    their ends; slots before a row's first are zero."""
    present = 0 if old is None else len(old)
    both = new.new_zeros((present + len(chosen), new.shape[1], slots, new.shape[3]))
    if old is not None:
        both[:present, :, slots - old.shape[2] :] = old
    both[present:, :, slots - new.shape[2] :] = new[chosen]
    return both
