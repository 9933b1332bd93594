"""Rotary position angles, as the model's own module computes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rotations:
    """A table of cos + i·sin by position and pair of coordinates; pairs that do not rotate have 1."""

    def __init__(self, rotary: nn.Module, device: torch.device) -> None:
        self._rotary, self._device = rotary, device
        self._table = torch.empty((0, 0), dtype=torch.complex64, device=device)
        self.rotated = self._angles(1)[0].shape[-1]  # coordinates of a head that rotate

    def make_table(self, length: int, head_size: int) -> None:
        """Afterwards positions up to ``length`` - 1 are known: 4 × ``head_size`` bytes each."""
        if len(self._table) >= length:
            return
        cosines, sines = self._angles(length)
        pairs = self.rotated // 2
        self._table = torch.ones((length, head_size // 2), dtype=torch.complex64, device=self._device)
        self._table[:, :pairs] = torch.complex(cosines[:, :pairs], sines[:, :pairs])

    @property
    def angles(self) -> Tensor:
        """The table as numbers, (length, head size): of each pair its cosine and its sine."""
        return torch.view_as_real(self._table).flatten(1)

    def at(self, positions: Tensor) -> Tensor:
        """Returns (n, head size / 2) complex64. Positions beyond the table, which only rows without a reader have, get
        its last entry."""
        return self._table.index_select(0, positions.clamp(max=len(self._table) - 1))

    def _angles(self, length: int) -> tuple[Tensor, Tensor]:
        """Returns cosine and sine of each position's angles, (length, rotated) float32."""
        positions = torch.arange(length, device=self._device).unsqueeze(0)
        cosines, sines = self._rotary(torch.empty(0, device=self._device), positions)
        return cosines[0], sines[0]
