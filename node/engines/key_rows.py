"""The keys and values of a batch of rows that join, grow by a token a step and leave, aligned at their ends.

Each row holds its prompt: transformers' own attention wants all keys of a row in one tensor, and measures a sliding
window by slots, so that a row may have no holes. What joins and leaves is written once, a layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

Layers = list[tuple[Tensor, Tensor]]  # keys and values of each layer, (rows, kv heads, slots, size)
# what comes in (rows, T, …); 1 where a row has a token, past included (rows, slots); positions (rows, T); the cache
Run = Callable[[Tensor, Tensor, Tensor, DynamicCache], Tensor]


class KeyRows:
    """``run`` computes a model, or some of its layers, on what comes in, and fills the cache."""

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device = run, device
        self._no_rows = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self.release()

    def release(self) -> None:
        self._cache: DynamicCache | None = None
        # (rows, slots) 1 where a row has a token
        self._seen = self._no_rows

    @property
    def count(self) -> int:
        return len(self._seen)

    @property
    def nbytes(self) -> int:
        layers = [] if self._cache is None else _layers(self._cache)
        return self._seen.nbytes + sum(keys.nbytes + values.nbytes for keys, values in layers)

    def computed(self, given: Tensor, padding: Tensor) -> tuple[Tensor, Layers]:
        """Returns what ``run`` makes of prompts (P, L, …), right-aligned behind ``padding`` (P,) columns, and their
        keys and values. No row is added."""
        seen = (torch.arange(given.shape[1], device=self._device) >= padding[:, None]).long()
        cache = DynamicCache()
        return self._forward(given, seen, cache), _layers(cache)

    def join(self, prompts: Layers, lengths: Sequence[int], which: Sequence[int]) -> None:
        """Adds a row for each entry of ``which``, an index into ``prompts`` and their ``lengths``."""
        chosen = torch.tensor(which, device=self._device)
        length = prompts[0][0].shape[-2]
        slots = max(length, self._seen.shape[1])
        of_rows = torch.tensor(lengths, device=self._device)[chosen]
        joining_seen = (torch.arange(slots, device=self._device) >= slots - of_rows[:, None]).long()
        merged = DynamicCache()
        for index, new in enumerate(prompts):
            old = (None, None) if self._cache is None else _taken(self._cache, index)
            keys, values = (_joined(*each, chosen, slots) for each in zip(old, new, strict=True))
            merged.layers.append(_layer(keys, values))
        old_seen = functional.pad(self._seen, (slots - self._seen.shape[1], 0))
        self._cache, self._seen = merged, torch.cat([old_seen, joining_seen])

    def leave(self, holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        """The batch shrinks to ``rows``: row ``tails[i]`` becomes ``holes[i]``."""
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

    def step(self, given: Tensor) -> Tensor:
        """Appends one token, (n, 1, …), to each row; returns what ``run`` makes of them."""
        assert self._cache is not None, "a step needs rows"
        self._seen = functional.pad(self._seen, (0, 1), value=1)
        return self._forward(given, self._seen, self._cache)

    def _forward(self, given: Tensor, seen: Tensor, cache: DynamicCache) -> Tensor:
        positions = (seen.cumsum(-1) - 1).clamp_(min=0)[:, -given.shape[1] :]
        return self._run(given, seen, positions, cache)


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
