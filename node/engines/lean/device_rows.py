"""Where rows and shared prompts lie on a GPU, as the decode step's kernels read it (``node.kernels.decoding``).

Kept on the host as elsewhere, and copied to the device when rows join or leave.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.lean.row_slots import RowSlots
from node.engines.lean.shared_prompts import SharedPrompts


class DeviceRows(RowSlots):
    """``RowSlots`` in a device's memory. ``device_starts``, (rows,) int32: each row's first slot."""

    def __init__(self, keys: Tensor, values: Tensor, *, lead: int) -> None:
        super().__init__(keys, values, lead=lead)
        self.layer_keys, self.layer_values = keys.unbind(0), values.unbind(0)  # (rows, kv heads, slots, size) each
        self.device_starts = torch.zeros(keys.shape[1], dtype=torch.int32, device=keys.device)

    def join(self, lengths: Sequence[int]) -> slice:
        joining = super().join(lengths)
        _copy(self.starts, self.device_starts)
        return joining

    def leave(self, holes: Tensor, tails: Tensor, moved: tuple[Sequence[int], Sequence[int]], rows: int) -> None:
        super().leave(holes, tails, moved, rows)
        _copy(self.starts, self.device_starts)


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
