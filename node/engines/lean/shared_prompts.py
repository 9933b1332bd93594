"""Prompts whose keys and values are held once, and attention of all rows over them.

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


@dataclass(frozen=True, slots=True, eq=False)
class Seats:
    """Where each query lies among its prompt's: prompt, kv head, seat, with as many seats a prompt as the most queries
    that one has. An empty seat has the first query, and nobody reads its result."""

    gather: Tensor  # (prompts × kv heads × seats,) which query and head sits there
    places: Tensor  # (queries × kv heads,) where each one sits


class SharedPrompts:
    """``keys`` and ``values`` are (layers, prompts, kv heads, slots, size), ``mask`` (prompts, kv heads, slots) zeros.

    Prompts lie at the end of their slots. Those held fill the first places without a gap: a step reads no other.
    """

    def __init__(self, keys: Tensor, values: Tensor, mask: Tensor, *, rows: int, attention: Attention) -> None:
        self._keys, self._values, self._mask = keys, values, mask
        self._layer_keys = keys.flatten(1, 2).unbind(0)  # a layer: (prompts × kv heads, slots, size)
        self._layer_values = values.flatten(1, 2).unbind(0)
        self._layer_mask = mask.flatten(0, 1).unsqueeze(1)
        _, self._room, self._kv_heads, self._slots, _ = keys.shape
        self._attention = attention
        self._device = keys.device
        self._held = 0
        self._lengths: NDArray[np.int64] = np.zeros(self._room, dtype=np.int64)
        self._expected: NDArray[np.int64] = np.zeros(self._room, dtype=np.int64)  # rows yet to end, joined or not
        self._names: NDArray[np.int64] = np.zeros(self._room, dtype=np.int64)  # of the prompt in each place
        self._named = 0
        self._prompt: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)  # each row's, by place
        self._padded = False

    @property
    def mask_bytes(self) -> int:
        return self._mask.nbytes

    @property
    def free(self) -> int:
        return self._room - self._held

    def add(self, lengths: Sequence[int], completions: Sequence[int]) -> tuple[slice, list[int]]:
        """Takes places for prompts that so many rows will continue. Returns the places, to write to at once, and the
        prompts' names, by which rows join."""
        places = slice(self._held, self._held + len(lengths))
        self._held = places.stop
        self._lengths[places], self._expected[places] = lengths, completions
        names = list(range(self._named, self._named + len(lengths)))
        self._names[places] = names
        self._named += len(lengths)
        first = torch.from_numpy(self._slots - self._lengths[places]).to(self._device)
        unseen = torch.arange(self._slots, device=self._device) < first[:, None]
        self._mask[places] = torch.zeros_like(unseen, dtype=self._mask.dtype).masked_fill_(unseen, -torch.inf)[:, None]
        return places, names

    def write(self, layer: int, places: slice, keys: Tensor, values: Tensor) -> None:
        """``keys`` and ``values`` are (places, kv heads, length, size), aligned at the prompts' last tokens."""
        used = slice(self._slots - keys.shape[2], self._slots)
        self._keys[layer, places, :, used], self._values[layer, places, :, used] = keys, values

    def join(self, rows: slice, names: Sequence[int]) -> None:
        place_of = {name: place for place, name in enumerate(self._names[: self._held].tolist())}
        self._prompt[rows] = [place_of[name] for name in names]
        self._seat(rows.stop)

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        """Rows ``ended`` end; then row ``tails[i]`` becomes ``holes[i]`` and rows from ``rows`` on do not exist."""
        np.subtract.at(self._expected, self._prompt[list(ended)], 1)
        self._prompt[list(holes)] = self._prompt[list(tails)]
        for place in np.flatnonzero(self._expected[: self._held] == 0)[::-1]:
            self._remove(int(place), rows)
        self._seat(rows)

    @property
    def seats(self) -> Seats:
        """Of a pass with one query a row."""
        return self._seats

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
        keys, values = self._layer_keys[layer][:batches, window], self._layer_values[layer][:batches, window]
        past = Past(keys, values, self._layer_mask[:batches, :, window], self._padded)
        mixed, logs = self._attention(by_prompt, past)
        return mixed.reshape(-1, count, size), logs.reshape(-1, count, 1)

    def _remove(self, place: int, rows: int) -> None:
        """Frees a place; the prompt in the last one moves there."""
        last = self._held = self._held - 1
        if place == last:
            return
        used = slice(self._slots - int(self._lengths[last]), self._slots)
        for cache in (self._keys, self._values):
            cache[:, place, :, used] = cache[:, last, :, used]
        self._mask[place] = self._mask[last]
        for array in (self._lengths, self._expected, self._names):
            array[place] = array[last]
        present = self._prompt[:rows]
        present[present == last] = place

    def _seat(self, rows: int) -> None:
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
