"""Where rows and shared prompts lie on a GPU, as the decode step's kernels read it (``node.kernels.decoding``).

Kept on the host as elsewhere, and copied to the device when rows join or leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.decoder import Drafts
from node.engines.lean.row_slots import RowSlots
from node.engines.lean.shared_prompts import SharedPrompts


class DeviceRows(RowSlots):
    """``RowSlots`` in a device's memory. ``seats``, (rows,) int32: each row's place, -1 of rows that are not there;
    ``device_starts``, (places,) int32: each place's first slot."""

    def __init__(self, keys: Tensor, values: Tensor, *, lead: int) -> None:
        super().__init__(keys, values, lead=lead)
        self.layer_keys, self.layer_values = keys.unbind(0), values.unbind(0)  # (places, kv heads, slots, size) each
        self._table = torch.zeros((2, keys.shape[1]), dtype=torch.int32, device=keys.device)
        self.seats, self.device_starts = self._table.unbind(0)

    def rejoin(self, places: Sequence[int]) -> None:
        super().rejoin(places)
        self._seat()

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        super().leave(ended, holes, tails, rows)
        self._seat()

    def move(self, keys: Tensor, values: Tensor) -> None:
        super().move(keys, values)
        self.layer_keys, self.layer_values = keys.unbind(0), values.unbind(0)

    def _seat(self) -> None:
        rows = np.arange(len(self.seats))
        _copy(np.stack([np.where(rows < self.rows, self.place_of(rows), -1), self.starts]), self._table)


class DevicePrompts(SharedPrompts):
    """``SharedPrompts`` in a device's memory. ``device_places``, (rows,) int32: each row's prompt; ``device_lengths``,
    (prompts,) int32: how long each is. Rows and prompts that are no longer held have old ones."""

    mask_bytes = 0

    def __init__(self, keys: Tensor, values: Tensor, *, rows: int) -> None:
        super().__init__(keys, values, rows=rows)
        self.layer_keys, self.layer_values = keys.unbind(0), values.unbind(0)  # (prompts, kv heads, slots, size) each
        self.device_places = torch.zeros(rows, dtype=torch.int32, device=keys.device)
        self.device_lengths = torch.zeros(keys.shape[1], dtype=torch.int32, device=keys.device)

    def move(self, keys: Tensor, values: Tensor) -> None:
        super().move(keys, values)
        self.layer_keys, self.layer_values = keys.unbind(0), values.unbind(0)

    def _rows_changed(self, rows: int) -> None:
        _copy(self._prompt, self.device_places)
        _copy(self._lengths, self.device_lengths)


@dataclass(frozen=True, slots=True, eq=False)
class DevicePass:
    """The n tokens that one pass appends to rows, in a device's memory; there may be room for more."""

    tokens: Tensor  # (n,) int64
    seats: Tensor  # (≥ n,) int32: of the row of each
    positions: Tensor  # (≥ n,) int64: of each in its completion, prompt included
    places: Tensor | None  # (≥ n,) int32: of the shared prompt of each
    read: Tensor | None = None  # those whose logits are wanted, if not all

    @classmethod
    def of_drafts(
        cls, newest: Tensor, drafts: Drafts, positions: Tensor, rows: DeviceRows, prompts: DevicePrompts | None
    ) -> DevicePass:
        """``positions`` of the rows' newest tokens, (rows,)."""
        row_of, after, read = (
            torch.from_numpy(each).to(newest.device) for each in (drafts.row_of, drafts.after, drafts.read)
        )
        places = None if prompts is None else prompts.device_places[row_of]
        return cls(drafts.following(newest), rows.seats[row_of], positions[row_of] + after, places, read)


def _copy(numbers: NDArray[np.int64], target: Tensor) -> None:
    target.copy_(torch.from_numpy(numbers.astype(np.int32)))
