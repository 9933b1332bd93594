"""The rows' own keys and values, on a timeline that all rows share.

The next token of every row goes into slot ``now``, whatever the row's own length, so that a step writes one slice. A
row's first slot is where it joined; slots before it are masked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.lean.attention import Past, aligned_down


class RowTimeline:
    """``keys`` and ``values`` are (layers, rows, kv heads, slots, size), ``mask`` (rows, kv heads, slots) zeros. Every
    value in them is finite.

    ``lead``: the most slots that a joining row brings along.
    """

    def __init__(self, keys: Tensor, values: Tensor, mask: Tensor, *, lead: int) -> None:
        self.keys, self.values = keys, values
        self._layer_keys = keys.flatten(1, 2).unbind(0)  # a layer: (rows × kv heads, slots, size)
        self._layer_values = values.flatten(1, 2).unbind(0)
        self._mask = mask  # (rows, kv heads, slots) 0 or -inf
        self._layer_mask = mask.flatten(0, 1).unsqueeze(1)
        self._room, self._slots, self._device = keys.shape[1], keys.shape[3], keys.device
        self.starts: NDArray[np.int64] = np.zeros(self._room, dtype=np.int64)  # of each row, in host memory
        self._lead = lead
        self.now = lead
        self.rows = 0
        self._window()

    @property
    def mask_bytes(self) -> int:
        return self._mask.nbytes

    @property
    def joins_at(self) -> int:
        """The slot after a joining row's prompt."""
        return self.now

    def join(self, lengths: Sequence[int]) -> slice:
        """Adds a row with ``length`` slots before ``now`` for each of ``lengths``. Returns which rows they are."""
        joining = slice(self.rows, self.rows + len(lengths))
        self.rows = joining.stop
        self.starts[joining] = [self.now - length for length in lengths]
        self._starts_changed(joining)
        return joining

    def leave(self, holes: Tensor, tails: Tensor, moved: tuple[Sequence[int], Sequence[int]], rows: int) -> None:
        """Shrinks to ``rows``; row ``tails[i]`` moves to ``holes[i]``. ``moved`` are both again, in host memory."""
        self.rows = rows
        if len(holes):
            used = slice(int(self.starts[list(moved[1])].min()), self.now)
            for cache in (self.keys, self.values):
                cache[:, holes, :, used] = cache[:, tails, :, used]
            self._mask[holes] = self._mask[tails]
            self.starts[list(moved[0])] = self.starts[list(moved[1])]
        self._window()

    def make_room(self) -> None:
        """Afterwards slot ``now`` exists: rows that fill the timeline to its end are moved to its front."""
        if self.now < self._slots:
            return
        first = self._earliest
        length = self.now - first
        moved = max(self._lead, length)
        for cache in (self.keys, self.values):
            cache[:, :, :, moved - length : moved] = cache[:, :, :, first : self.now].clone()
        self.starts = np.maximum(self.starts - (self.now - moved), 0)
        self.now = moved
        self._starts_changed(slice(0, self._room))

    def advance(self, tokens: NDArray[np.int64] | int) -> None:
        assert isinstance(tokens, int), "rows of one timeline advance alike"
        self.now += tokens

    def write(self, layer: int, count: int, keys: Tensor, values: Tensor) -> None:
        """Writes the newest token's keys and values of the first ``count`` rows, (count, kv heads, size)."""
        self.keys[layer, :count, :, self.now].copy_(keys)
        self.values[layer, :count, :, self.now].copy_(values)

    def past(self, layer: int, batches: int) -> Past:
        """Returns the slots that the present rows need, ``now`` included; ``batches`` is rows × kv heads."""
        window = slice(self._first, self.now + 1)
        keys, values = self._layer_keys[layer][:batches, window], self._layer_values[layer][:batches, window]
        return Past(keys, values, self._layer_mask[:batches, :, window], self._ragged)

    def _starts_changed(self, rows: slice) -> None:
        starts = torch.from_numpy(self.starts[rows].copy()).to(self._device)
        unseen = torch.arange(self._slots, device=self._device) < starts[:, None]
        self._mask[rows] = torch.zeros_like(unseen, dtype=self._mask.dtype).masked_fill_(unseen, -torch.inf)[:, None]
        self._window()

    def _window(self) -> None:
        """Sets which slots are read, and whether some row starts later than the first of these."""
        present = self.starts[: self.rows]
        self._earliest = int(present.min()) if self.rows else self.now
        self._first = aligned_down(self._earliest, self._device)
        self._ragged = bool((present != self._first).any())
