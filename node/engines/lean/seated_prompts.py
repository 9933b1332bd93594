"""Attention of all rows over shared prompts, by matrix products.

The queries of the rows that continue one prompt are one matrix: where each row would multiply its few queries by a copy
of the prompt's keys, all of them multiply them once. Rows stay where they are; each layer gathers their queries by
prompt and brings the result back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.lean.attention import Attention, Past, aligned_down
from node.engines.lean.shared_prompts import SharedPrompts


@dataclass(frozen=True, slots=True, eq=False)
class Seats:
    """Where each query lies among its prompt's: prompt, kv head, seat, with as many seats a prompt as the most queries
    that one has. An empty seat has the first query, and nobody reads its result."""

    gather: Tensor  # (prompts × kv heads × seats,) which query and head sits there
    places: Tensor  # (queries × kv heads,) where each one sits


class SeatedPrompts(SharedPrompts):
    """``SharedPrompts`` with attention over them. ``mask`` (prompts, kv heads, slots) is zeros."""

    def __init__(self, keys: Tensor, values: Tensor, mask: Tensor, *, rows: int, attention: Attention) -> None:
        super().__init__(keys, values, rows=rows)
        self._mask = mask
        self._divide()
        self._batch_mask = mask.flatten(0, 1).unsqueeze(1)
        self._attention = attention
        self.mask_bytes = mask.nbytes

    def move(self, keys: Tensor, values: Tensor) -> None:
        super().move(keys, values)
        self._divide()

    def _divide(self) -> None:
        self._batch_keys = self._keys.flatten(1, 2).unbind(0)  # a layer: (prompts × kv heads, slots, size)
        self._batch_values = self._values.flatten(1, 2).unbind(0)

    @property
    def seats(self) -> Seats:
        """Of a pass with one query a row."""
        return self._seats

    def add(self, lengths: Sequence[int], completions: Sequence[int]) -> tuple[slice, list[int]]:
        places, names = super().add(lengths, completions)
        first = torch.from_numpy(self._slots - self._lengths[places]).to(self._device)
        unseen = torch.arange(self._slots, device=self._device) < first[:, None]
        self._mask[places] = torch.zeros_like(unseen, dtype=self._mask.dtype).masked_fill_(unseen, -torch.inf)[:, None]
        return places, names

    def seats_of(self, row_of: NDArray[np.int64], count: int) -> Seats:
        """Of a pass with several queries a row: ``row_of`` has the row of each; ``count`` queries read a result."""
        return _seats_of(self._prompt[row_of], self._held, self._kv_heads, count, self._device)

    def attend(self, queries: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """``queries`` is (rows × kv heads, q, size). Returns attention over each row's prompt, alike, and its l,
        (rows × kv heads, q, 1)."""
        mixed, logs = self.attend_by_prompt(queries, layer, self._seats)
        back = self._seats.places[: queries.shape[0]]
        return mixed[back], logs[back]

    def attend_by_prompt(self, queries: Tensor, layer: int, seats: Seats) -> tuple[Tensor, Tensor]:
        """The same, in the order of the prompts: the result for a query and kv head stands where ``places`` says."""
        _, count, size = queries.shape
        batches, window = self._held * self._kv_heads, slice(self._first, self._slots)
        by_prompt = queries[seats.gather].view(batches, -1, size)
        keys, values = self._batch_keys[layer][:batches, window], self._batch_values[layer][:batches, window]
        past = Past(keys, values, self._batch_mask[:batches, :, window], self._padded)
        mixed, logs = self._attention(by_prompt, past)
        return mixed.reshape(-1, count, size), logs.reshape(-1, count, 1)

    def _remove(self, place: int, rows: int) -> None:
        super()._remove(place, rows)
        self._mask[place] = self._mask[self._held]

    def _rows_changed(self, rows: int) -> None:
        held = self._held
        lengths = self._lengths[:held]
        self._first = aligned_down(self._slots - int(lengths.max(initial=0)), self._device)
        self._padded = bool((lengths != self._slots - self._first).any())
        self._seats = _seats_of(self._prompt[:rows], held, self._kv_heads, len(self._prompt), self._device)


def _seats_of(prompt: NDArray[np.int64], held: int, kv_heads: int, count: int, device: torch.device) -> Seats:
    """``prompt`` is each query's, by place. Queries up to ``count`` that have none read some result."""
    queries = len(prompt)
    order = np.argsort(prompt, kind="stable")
    counts = np.bincount(prompt, minlength=held)
    seat = np.empty(queries, dtype=np.int64)
    seat[order] = np.arange(queries) - np.repeat(np.cumsum(counts) - counts, counts)
    seats = int(counts.max(initial=1))
    heads = np.arange(kv_heads)
    gather = np.zeros((held, kv_heads, seats), dtype=np.int64)
    gather[prompt, :, seat] = np.arange(queries)[:, None] * kv_heads + heads
    places = np.zeros((count, kv_heads), dtype=np.int64)
    places[:queries] = (prompt[:, None] * kv_heads + heads) * seats + seat[:, None]
    return Seats(torch.from_numpy(gather.ravel()).to(device), torch.from_numpy(places.ravel()).to(device))
