"""Queries, keys and values of completions and their prompts, which of these each follows, and how long both are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Heads(NamedTuple):
    """Of B completions and K prompts. The last dimension of each is contiguous."""

    query: Tensor  # (B, H, T, d)
    keys: Tensor  # (B, kv heads, S, d), H a multiple of kv heads; queries are the last T ≤ S columns
    values: Tensor
    prompt_keys: Tensor  # (K, kv heads, P, d)
    prompt_values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RowLengths:
    """B completions and K prompts, each beginning at column 0; completions of one prompt are neighbours."""

    prompt_of: Tensor  # (B,) int32, never falling
    lengths: Tensor  # (B,) int32: of each completion, 0 or more; what lies in columns after these is padding
    prompt_lengths: Tensor  # (K,) int32
    first_rows: Tensor  # (K + 1,) int32: completions of prompt k are rows first_rows[k] to first_rows[k + 1] - 1

    @classmethod
    def of(cls, prompt_of: Tensor, lengths: Tensor, prompt_lengths: Tensor) -> RowLengths:
        prompts = torch.arange(len(prompt_lengths) + 1, device=prompt_of.device, dtype=torch.int32)
        sorted_prompts = prompt_of.int()
        first_rows = torch.searchsorted(sorted_prompts, prompts, out_int32=True)
        return cls(sorted_prompts, lengths.int(), prompt_lengths.int(), first_rows)

    def part(self, rows: slice) -> RowLengths:
        first_rows = (self.first_rows - rows.start).clamp(0, rows.stop - rows.start)
        return RowLengths(self.prompt_of[rows], self.lengths[rows], self.prompt_lengths, first_rows)
