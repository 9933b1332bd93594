"""The interface between engine and decoder: a batch of rows that each grow by one token a step, on a shared timeline.

All rows are aligned at their newest token: the next token of every row goes into slot ``t`` of the cache, whatever the
row's own length, so that a step writes one slice, and a prompt that joins later lies in the slots just before ``t``.
The engine decides which rows join and leave; the decoder keeps keys and values and computes logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

Cache = TypeVar("Cache")


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled(Generic[Cache]):
    """P prompts, computed once; each may be copied into any number of rows."""

    logits: torch.Tensor  # (P, V) for the token after each prompt
    lengths: tuple[int, ...]  # tokens of each prompt
    cache: Cache  # keys and values, aligned at the prompts' last tokens


class Decoder(Protocol[Cache]):
    def refresh(self) -> None:
        """Loads the weights that the policy's modules hold now."""

    def begin(self, rows: int, longest_prompt: int, longest_completion: int, *, crowded: bool) -> None:
        """Empties the batch and reserves room for ``rows`` sequences; ``crowded``: more join while others decode."""

    def release(self) -> None:
        """Gives back the memory of keys and values; ``begin`` takes it again."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Prefilled[Cache]:
        """Computes prompts, padded to the longest of them, without adding them to the batch."""

    def join(self, prefilled: Prefilled[Cache], which: Sequence[int]) -> None:
        """Adds one row at the end of the batch for each entry of ``which``, an index into the prefilled prompts."""

    def leave(self, holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        """Shrinks the batch to ``rows``: row ``tails[i]`` moves to ``holes[i]``, rows beyond are dropped."""

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Appends one token to each row, (n,) int64. Returns the logits of the next ones, (n, V)."""


def right_aligned(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the prompts as one matrix (P, L), padded in front with zeros, and each prompt's number of zeros, (P,)."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    padding = torch.tensor([longest - len(prompt) for prompt in prompts])
    return ids.to(device), padding.to(device)
