"""Where rows and shared prompts lie on a GPU, as the decode step's kernels read it (``node.kernels.decoding``).

Kept on the host as elsewhere, and copied to the device when rows join or leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.lean.shared_prompts import SharedPrompts


class DeviceRows:
    """The rows' own keys and values, (layers, rows, kv heads, slots, size), in a device's memory; those present are the
    first. A row's prompt, if the row holds it, ends at slot ``lead``; its completion's tokens follow from there.

    ``device_starts``, (rows,) int32: each row's first slot.
    """

    mask_bytes: Final = 0

    def __init__(self, keys: Tensor, values: Tensor, *, lead: int) -> None:
        self.keys, self.values = keys, values
        self.layer_keys, self.layer_values = keys.unbind(0), values.unbind(0)  # (rows, kv heads, slots, size) each
        self.device_starts = torch.zeros(keys.shape[1], dtype=torch.int32, device=keys.device)
        self._starts: NDArray[np.int64] = np.zeros(keys.shape[1], dtype=np.int64)
        self._ends: NDArray[np.int64] = np.zeros(keys.shape[1], dtype=np.int64)  # the slot of each row's next token
        self.joins_at: Final = lead
        self.rows = 0

    def join(self, lengths: Sequence[int]) -> slice:
        """Adds a row with ``length`` slots before ``joins_at`` for each of ``lengths``. Returns which rows they are."""
        joining = slice(self.rows, self.rows + len(lengths))
        self.rows = joining.stop
        self._starts[joining] = [self.joins_at - length for length in lengths]
        self._ends[joining] = self.joins_at
        _copy(self._starts, self.device_starts)
        return joining

    def leave(self, holes: Tensor, tails: Tensor, moved: tuple[Sequence[int], Sequence[int]], rows: int) -> None:
        """Shrinks to ``rows``; row ``tails[i]`` moves to ``holes[i]``. ``moved`` are both again, as numbers."""
        self.rows = rows
        if len(holes):
            into, source = map(list, moved)
            used = slice(int(self._starts[source].min()), int(self._ends[source].max()))
            for cache in (self.keys, self.values):
                cache[:, holes, :, used] = cache[:, tails, :, used]
            self._starts[into], self._ends[into] = self._starts[source], self._ends[source]
        _copy(self._starts, self.device_starts)

    def advance(self, tokens: NDArray[np.int64] | int) -> None:
        """Each present row has so many tokens more."""
        self._ends[: self.rows] += tokens


class DevicePrompts(SharedPrompts):
    """``SharedPrompts`` in a device's memory. ``device_places``, (rows,) int32: each row's prompt; ``device_lengths``,
    (prompts,) int32: how long each is. Rows and prompts that are no longer held have old ones."""

    mask_bytes = 0

    def __init__(self, keys: Tensor, values: Tensor, *, rows: int) -> None:
        super().__init__(keys, values, rows=rows)
        self.layer_keys, self.layer_values = keys.unbind(0), values.unbind(0)  # (prompts, kv heads, slots, size) each
        self.device_places = torch.zeros(rows, dtype=torch.int32, device=keys.device)
        self.device_lengths = torch.zeros(keys.shape[1], dtype=torch.int32, device=keys.device)

    def _rows_changed(self, rows: int) -> None:
        _copy(self._prompt, self.device_places)
        _copy(self._lengths, self.device_lengths)


def _copy(numbers: NDArray[np.int64], target: Tensor) -> None:
    target.copy_(torch.from_numpy(numbers.astype(np.int32)))
