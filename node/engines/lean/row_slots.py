"""The rows' own keys and values where each row has an end of its own: rows may grow by unlike numbers of tokens.

A row has one place in the cache, whatever other rows come and go, so that none is ever copied; one that parts from the
batch, to come back later, keeps it. Its prompt, if the row holds it, ends at slot ``lead``; its completion's tokens
follow from there. Nothing is masked: attention reads a row from its start to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class RowSlots:
    """``keys`` and ``values`` are (layers, places, kv heads, slots, size).

    ``lead``: the most slots that a joining row brings along.
    """

    mask_bytes: Final = 0

    def __init__(self, keys: Tensor, values: Tensor, *, lead: int) -> None:
        self.keys, self.values = keys, values
        places = keys.shape[1]
        self.starts: NDArray[np.int64] = np.zeros(places, dtype=np.int64)  # each place's first slot
        self._ends: NDArray[np.int64] = np.zeros(places, dtype=np.int64)  # the slot of its next token
        self._place: NDArray[np.int64] = np.zeros(places, dtype=np.int64)  # of each row
        self._free = list(range(places))[::-1]
        self.joins_at: Final = lead
        self.rows = 0

    @property
    def slots(self) -> int:
        return int(self.keys.shape[3])

    @cached_property
    def host_layers(self) -> tuple[tuple[NDArray[Any], NDArray[Any]], ...]:
        """Each layer's keys, (places, kv heads, size, slots), and values, (places, kv heads, slots, size), of a CPU."""
        return tuple(
            (keys.transpose(-1, -2).numpy(), values.numpy())
            for keys, values in zip(self.keys, self.values, strict=True)
        )

    def join(self, lengths: Sequence[int]) -> slice | list[int]:
        """Adds a row with ``length`` slots before ``joins_at`` for each of ``lengths``. Returns their places."""
        places = [self._free.pop() for _ in lengths]
        self.starts[places] = [self.joins_at - length for length in lengths]
        self._ends[places] = self.joins_at
        self.rejoin(places)
        neighbours = slice(places[0], places[0] + len(places))
        return neighbours if places == list(range(neighbours.start, neighbours.stop)) else places

    def rejoin(self, places: Sequence[int]) -> None:
        """Adds rows that have parted."""
        self._place[self.rows : self.rows + len(places)] = places
        self.rows += len(places)

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        """Shrinks to ``rows``; row ``tails[i]`` becomes ``holes[i]``. Rows ``ended`` end; others that leave part."""
        self.free(self._place[list(ended)].tolist())
        self._place[list(holes)] = self._place[list(tails)]
        self.rows = rows

    def free(self, places: Sequence[int]) -> None:
        self._free += places

    def place_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        places: NDArray[np.int64] = self._place[rows]
        return places

    def end_of(self, place: int) -> int:
        """Returns the slot of a place's next token."""
        return int(self._ends[place])

    def next_slots(self, places: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the slot of the token that comes ``after`` so many others of its row. A row beyond its slots has
        ended, and the host has not looked yet: it writes to its last one."""
        slots: NDArray[np.int64] = np.minimum(self._ends[places] + after, self.slots - 1)
        return slots

    def advance(self, tokens: NDArray[np.int64] | int) -> None:
        """Each present row has so many tokens more, or fewer."""
        self._ends[self._place[: self.rows]] += tokens

    def move(self, keys: Tensor, values: Tensor) -> None:
        """Goes on in ``keys`` and ``values``, which have more slots."""
        used = slice(0, int(self._ends.max()))
        for new, old in ((keys, self.keys), (values, self.values)):
            new[:, :, :, used] = old[:, :, :, used]
        self.keys, self.values = keys, values
        self.__dict__.pop("host_layers", None)
