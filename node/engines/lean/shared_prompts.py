"""Prompts whose keys and values are held once for all the rows that continue them: where each lies, and for whom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class SharedPrompts(ABC):
    """``keys`` and ``values`` are (layers, prompts, kv heads, slots, size).

    Prompts lie at the end of their slots. Those held fill the first places without a gap: a step reads no other.
    """

    mask_bytes: int

    def __init__(self, keys: Tensor, values: Tensor, *, rows: int) -> None:
        self._keys, self._values = keys, values
        _, self._room, self._kv_heads, self._slots, _ = keys.shape
        self._device = keys.device
        self._held = 0
        self._lengths: NDArray[np.int64] = np.zeros(self._room, dtype=np.int64)
        self._expected: NDArray[np.int64] = np.zeros(self._room, dtype=np.int64)  # rows yet to end, joined or not
        self._names: NDArray[np.int64] = np.zeros(self._room, dtype=np.int64)  # of the prompt in each place
        self._named = 0
        self._prompt: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)  # each row's, by place

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
        return places, names

    def move(self, keys: Tensor, values: Tensor) -> None:
        """Goes on in ``keys`` and ``values``, of the same shape."""
        held = slice(0, self._held)
        keys[:, held], values[:, held] = self._keys[:, held], self._values[:, held]
        self._keys, self._values = keys, values

    def write(self, layer: int, places: slice, keys: Tensor, values: Tensor) -> None:
        """``keys`` and ``values`` are (places, kv heads, length, size), aligned at the prompts' last tokens."""
        used = slice(self._slots - keys.shape[2], self._slots)
        self._keys[layer, places, :, used], self._values[layer, places, :, used] = keys, values

    def join(self, rows: slice, names: Sequence[int]) -> None:
        place_of = {name: place for place, name in enumerate(self._names[: self._held].tolist())}
        self._prompt[rows] = [place_of[name] for name in names]
        self._rows_changed(rows.stop)

    def name_of(self, row: int) -> int:
        """Returns the name of a row's prompt."""
        return int(self._names[self._prompt[row]])

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        """Rows ``ended`` end; then row ``tails[i]`` becomes ``holes[i]`` and rows from ``rows`` on do not exist."""
        self._end(self._prompt[list(ended)], holes, tails, rows)

    def drop(self, name: int, rows: int) -> None:
        """A row of the prompt ``name`` ends that is none of the ``rows`` present."""
        self._end(np.flatnonzero(self._names[: self._held] == name), (), (), rows)

    def _end(self, prompts: NDArray[np.int64], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        """Of each of ``prompts``, by place, a row has ended."""
        np.subtract.at(self._expected, prompts, 1)
        self._prompt[list(holes)] = self._prompt[list(tails)]
        for place in np.flatnonzero(self._expected[: self._held] == 0)[::-1]:
            self._remove(int(place), rows)
        self._rows_changed(rows)

    def _remove(self, place: int, rows: int) -> None:
        """Frees a place; the prompt in the last one moves there."""
        last = self._held = self._held - 1
        if place == last:
            return
        used = slice(self._slots - int(self._lengths[last]), self._slots)
        for cache in (self._keys, self._values):
            cache[:, place, :, used] = cache[:, last, :, used]
        for array in (self._lengths, self._expected, self._names):
            array[place] = array[last]
        present = self._prompt[:rows]
        present[present == last] = place

    @abstractmethod
    def _rows_changed(self, rows: int) -> None:
        """``rows`` rows are present now, with the prompts of ``_prompt``."""
