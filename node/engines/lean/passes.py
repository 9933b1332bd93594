"""What one pass over the batch computes: each row's newest token, and after it what was guessed to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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

# Queries of a row in one pass, from which on attention by matrix products takes less than one at a time.
LEAST_RUN_QUERIES: Final = 64


@dataclass(frozen=True, slots=True)
class Run:
    """What a row reads in one pass: ``positions`` of the pass, the last of ``slots`` at ``place``."""

    positions: slice
    place: int
    slots: slice  # of all that the row has then


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The m positions of one pass, row by row; those after them, up to the next multiple, have no reader."""

    wanted: int  # logits
    tokens: Tensor  # (count,)
    positions: Tensor  # (count,) in their completions, prompts included
    places: NDArray[np.int64]  # (m,) each one's row in the cache, where rows have slots of their own
    slots: NDArray[np.int64]  # (m,) and the slot there to which its key and value belong
    seats: Seats | None  # where prompts are held apart
    read: Tensor | None = None  # (≥ wanted,) the positions whose logits are wanted, if not the first ones
    runs: tuple[Run, ...] = ()  # rows with so many positions that products pay; the slots of these are -1


class RowPositions:
    """Where in its completion each row's next token is, prompt included: ``positions`` (rows,) int64 on the device, and
    the newest tokens of all rows in the last pass, ``tokens`` (rows,)."""

    def __init__(self, rows: int, heads: int, device: torch.device) -> None:
        """``heads``: queries of a position."""
        self._least_run = -(-LEAST_RUN_QUERIES // heads)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)

    def join(self, rows: slice, lengths: Sequence[int]) -> None:
        """``rows`` come in with so many tokens."""
        self.positions[rows] = torch.tensor(lengths, device=self.positions.device)

    def leave(self, holes: Tensor, tails: Tensor) -> None:
        self.positions[holes] = self.positions[tails]

    def advance(self, tokens: NDArray[np.int64] | int) -> None:
        """Adds to the number of tokens of each present row; negative for fewer."""
        if isinstance(tokens, int):
            self.positions.add_(tokens)
        else:
            self.positions[: len(tokens)] += torch.from_numpy(tokens).to(self.positions.device)

    def next_pass(
        self, tokens: Tensor, drafts: Drafts | None, rows: RowTimeline | RowSlots, prompts: SharedPrompts | None
    ) -> Pass:
        """``tokens`` are the rows' newest ones, (n,)."""
        if drafts is not None:
            return self._drafted(tokens, drafts, rows, prompts)
        present = rows.rows
        count = _computed(present)
        self.tokens[:present].copy_(tokens)
        where = _slots_of(rows, np.arange(present), np.zeros(present, dtype=np.int64))
        seats = prompts.seats if isinstance(prompts, SeatedPrompts) else None
        return Pass(present, self.tokens[:count], self.positions[:count], *where, seats)

    def _drafted(
        self, newest: Tensor, drafts: Drafts, rows: RowTimeline | RowSlots, prompts: SharedPrompts | None
    ) -> Pass:
        row_of, after = drafts.row_of, drafts.after
        computed = len(row_of)
        count = _computed(computed)
        tokens, positions = (torch.zeros(count, dtype=torch.int64) for _ in range(2))
        tokens[:computed] = drafts.following(newest)
        positions[:computed] = self.positions[torch.from_numpy(row_of)] + torch.from_numpy(after)
        seats = prompts.seats_of(row_of, count) if isinstance(prompts, SeatedPrompts) else None
        where = _slots_of(rows, row_of, after)
        if not drafts.given:
            return Pass(computed, tokens, positions, *where, seats)
        read = np.zeros(_computed(wanted := len(drafts.read)), dtype=np.int64)
        read[:wanted] = drafts.read
        runs = _runs_of(drafts, self._least_run, rows, *where)
        return Pass(wanted, tokens, positions, *where, seats, torch.from_numpy(read), runs)


def _runs_of(
    drafts: Drafts, least: int, rows: RowTimeline | RowSlots, places: NDArray[np.int64], slots: NDArray[np.int64]
) -> tuple[Run, ...]:
    """Returns the given rows with ``least`` positions or more, and marks these in ``slots``."""
    ends, counts = np.cumsum(drafts.counts + 1), drafts.counts + 1
    runs = []
    for end, count in zip(ends[-drafts.given :].tolist(), counts[-drafts.given :].tolist(), strict=True):
        if count >= least:
            positions, place = slice(end - count, end), int(places[end - 1])
            runs.append(Run(positions, place, slice(int(rows.starts[place]), int(slots[end - 1]) + 1)))
            slots[positions] = -1
    return tuple(runs)


def _computed(positions: int) -> int:
    return -(-positions // ROW_MULTIPLE) * ROW_MULTIPLE


def _slots_of(
    rows: RowTimeline | RowSlots, row_of: NDArray[np.int64], after: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns each position's place and slot."""
    if isinstance(rows, RowTimeline):
        return row_of, after  # not read
    places = rows.place_of(row_of)
    return places, rows.next_slots(places, after)
