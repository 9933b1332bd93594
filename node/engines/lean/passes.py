"""What one pass over the batch computes: each row's newest token, and after it what was guessed to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.cache_size import ROW_MULTIPLE
from node.engines.decoder import Drafts
from node.engines.lean.row_slots import RowSlots
from node.engines.lean.seated_prompts import SeatedPrompts, Seats
from node.engines.lean.shared_prompts import SharedPrompts
from node.engines.lean.timeline import RowTimeline


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The positions of one pass, row by row. Those from ``wanted`` on, up to the next multiple, have no reader."""

    wanted: int
    tokens: Tensor  # (count,)
    positions: Tensor  # (count,) in their completions, prompts included
    row_of: NDArray[np.int64]  # (wanted,)
    slots: NDArray[np.int64]  # (wanted,) where keys and values belong, of rows that have slots of their own
    seats: Seats | None  # where prompts are held apart


class RowPositions:
    """Where in its completion each row's next token is, prompt included: ``positions`` (rows,) int64 on the device, and
    the newest tokens of all rows in the last pass, ``tokens`` (rows,)."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)

    def join(self, rows: slice, lengths: Sequence[int]) -> None:
        self.positions[rows] = torch.tensor(lengths, device=self.positions.device)

    def leave(self, holes: Tensor, tails: Tensor) -> None:
        self.positions[holes] = self.positions[tails]

    def advance(self, tokens: NDArray[np.int64] | int) -> None:
        """Adds to the number of tokens of each present row; negative for fewer."""
        if isinstance(tokens, int):
            self.positions.add_(tokens)
        else:
            self.positions[: len(tokens)] += torch.from_numpy(tokens)

    def next_pass(
        self, tokens: Tensor, drafts: Drafts | None, rows: RowTimeline | RowSlots, prompts: SharedPrompts | None
    ) -> Pass:
        """``tokens`` are the rows' newest ones, (n,)."""
        if drafts is not None:
            return self._drafted(tokens, drafts, rows, prompts)
        present = rows.rows
        count = _computed(present)
        self.tokens[:present].copy_(tokens)
        row_of = np.arange(present)
        slots = _slots_of(rows, row_of, np.zeros(present, dtype=np.int64))
        seats = prompts.seats if isinstance(prompts, SeatedPrompts) else None
        return Pass(present, self.tokens[:count], self.positions[:count], row_of, slots, seats)

    def _drafted(
        self, newest: Tensor, drafts: Drafts, rows: RowTimeline | RowSlots, prompts: SharedPrompts | None
    ) -> Pass:
        row_of, after = drafts.row_of, drafts.after
        wanted = len(row_of)
        count = _computed(wanted)
        tokens, positions = (torch.zeros(count, dtype=torch.int64) for _ in range(2))
        first_of_row = torch.from_numpy(after == 0)
        tokens[:wanted][first_of_row] = newest
        tokens[:wanted][~first_of_row] = torch.from_numpy(drafts.tokens)
        positions[:wanted] = self.positions[torch.from_numpy(row_of)] + torch.from_numpy(after)
        seats = prompts.seats_of(row_of, count) if isinstance(prompts, SeatedPrompts) else None
        return Pass(wanted, tokens, positions, row_of, _slots_of(rows, row_of, after), seats)


def _computed(positions: int) -> int:
    return -(-positions // ROW_MULTIPLE) * ROW_MULTIPLE


def _slots_of(rows: RowTimeline | RowSlots, row_of: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows.next_slots(row_of, after) if isinstance(rows, RowSlots) else after
