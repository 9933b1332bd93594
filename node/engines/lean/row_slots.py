"""The rows' own keys and values where each row has an end of its own: rows may grow by unlike numbers of tokens.

A row's prompt, if the row holds it, ends at slot ``lead``; its completion's tokens follow from there. So no row is ever
moved to make room, and nothing is masked: attention reads a row from its start to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class RowSlots:
    """``keys`` and ``values`` are (layers, rows, kv heads, slots, size).

    ``lead``: the most slots that a joining row brings along.
    """

    mask_bytes: Final = 0

    def __init__(self, keys: Tensor, values: Tensor, *, lead: int) -> None:
        self.keys, self.values = keys, values
        self._slots = keys.shape[3]
        self.starts: NDArray[np.int64] = np.zeros(keys.shape[1], dtype=np.int64)  # each row's first slot
        self._ends: NDArray[np.int64] = np.zeros(keys.shape[1], dtype=np.int64)  # the slot of each row's next token
        self.joins_at: Final = lead
        self.rows = 0

    @cached_property
    def host_layers(self) -> tuple[tuple[NDArray[Any], NDArray[Any]], ...]:
        """Each layer's keys, (rows, kv heads, size, slots), and values, (rows, kv heads, slots, size), of a CPU."""
        return tuple(
            (keys.transpose(-1, -2).numpy(), values.numpy())
            for keys, values in zip(self.keys, self.values, strict=True)
        )

    def join(self, lengths: Sequence[int]) -> slice:
        """Adds a row with ``length`` slots before ``joins_at`` for each of ``lengths``. Returns which rows they are."""
        joining = slice(self.rows, self.rows + len(lengths))
        self.rows = joining.stop
        self.starts[joining] = [self.joins_at - length for length in lengths]
        self._ends[joining] = self.joins_at
        return joining

    def leave(self, holes: Tensor, tails: Tensor, moved: tuple[Sequence[int], Sequence[int]], rows: int) -> None:
        """Shrinks to ``rows``; row ``tails[i]`` moves to ``holes[i]``. ``moved`` are both again, as numbers."""
        self.rows = rows
        if len(holes):
            into, source = map(list, moved)
            used = slice(int(self.starts[source].min()), int(self._ends[source].max()))
            for cache in (self.keys, self.values):
                cache[:, holes, :, used] = cache[:, tails, :, used]
            self.starts[into], self._ends[into] = self.starts[source], self._ends[source]

    def slots_of(self, row: int) -> slice:
        """Returns which slots a row has."""
        return slice(int(self.starts[row]), int(self._ends[row]))

    def next_slots(self, row_of: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the slot of the token that comes ``after`` so many others of its row. A row beyond its slots has
        ended, and the host has not looked yet: it writes to its last one."""
        slots: NDArray[np.int64] = np.minimum(self._ends[row_of] + after, self._slots - 1)
        return slots

    def advance(self, tokens: NDArray[np.int64] | int) -> None:
        """Each present row has so many tokens more, or fewer."""
        self._ends[: self.rows] += tokens
