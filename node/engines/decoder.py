"""The interface between engine and decoder: a batch of rows that each grow by one token a step, or by more where the
engine guessed what follows.

The engine decides which rows join and leave; the decoder keeps keys and values and computes logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Cache = TypeVar("Cache")


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled(Generic[Cache]):
    """P prompts, computed once; each may be continued by as many rows as ``prefill`` was told."""

    logits: torch.Tensor  # (P, V) for the token after each prompt
    lengths: tuple[int, ...]  # tokens of each prompt
    cache: Cache  # keys and values, or where the decoder holds them


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """Guesses of the tokens that follow each row's newest one, to be verified in one pass."""

    tokens: NDArray[np.int64]  # (d,) the rows' one after another
    counts: NDArray[np.int64]  # (n,) of each row, d together

    @property
    def row_of(self) -> NDArray[np.int64]:
        """The row of each position of the pass, (n + d,): of each row its newest token, then its guesses."""
        rows: NDArray[np.int64] = np.repeat(np.arange(len(self.counts)), self.counts + 1)
        return rows

    @property
    def after(self) -> NDArray[np.int64]:
        """How many positions of its own row come before each position, (n + d,)."""
        firsts = np.cumsum(self.counts + 1) - (self.counts + 1)
        after: NDArray[np.int64] = np.arange(len(self.counts) + len(self.tokens)) - np.repeat(firsts, self.counts + 1)
        return after


class Decoder(Protocol[Cache]):
    def refresh(self) -> None:
        """Takes the weights that the policy's modules hold now. Between a change of them and this call, samples would
        be those of neither the old weights nor the new ones."""

    def begin(self, rows: int, completions: Sequence[int], longest_prompt: int, longest_completion: int) -> None:
        """Empties the batch and reserves room for ``rows`` sequences at a time.

        ``completions``: how many continue each prompt of the call, in the order in which the prompts are computed.
        """

    def release(self) -> None:
        """Gives back the memory of the batch and allocates none; the next ``begin`` takes it again."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys, values and masks held now."""

    @property
    def free_prompts(self) -> int | None:
        """How many more prompts ``prefill`` may compute before rows have left; None: any number."""

    def prefill(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[int], pasts: Sequence[Past | None] = ()
    ) -> Prefilled[Cache]:
        """Computes prompts, padded to the longest of them, without adding rows to the batch.

        ``completions`` rows of each will join and leave; then its keys and values are no longer held. Of a prompt with
        a past, one for each or none at all, only the tokens after it are computed, if the decoder can.
        """

    def past_of(self, row: int) -> Past | None:
        """Returns the keys and values that a row has, a copy; None where the decoder cannot."""

    def join(self, prefilled: Prefilled[Cache], which: Sequence[int]) -> None:
        """Adds one row at the end of the batch for each entry of ``which``, an index into the prefilled prompts."""

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        """Rows ``ended`` end. The batch shrinks to ``rows``: row ``tails[i]`` moves to ``holes[i]``."""

    @property
    def verifies_drafts(self) -> bool:
        """Whether ``step`` takes drafts."""

    def step(self, tokens: torch.Tensor, drafts: Drafts | None = None) -> torch.Tensor:
        """Appends one token to each row, (n,) int64. Returns the logits of the next ones, (n, V).

        With ``drafts`` it appends those too, and returns the logits after each position of the pass, (n + d, V).
        """

    def take_back(self, counts: NDArray[np.int64]) -> None:
        """Drops the last ``counts``, (n,), tokens of each row: guesses that were wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Keys and values of the first tokens of a sequence, (layers, kv heads, L, size) each."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def first(self, tokens: int) -> Past:
        """Returns those of the first ``tokens``: of guesses after an end there may be more."""
        return Past(self.keys[:, :, :tokens], self.values[:, :, :tokens])


def right_aligned(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the prompts as one matrix (P, L), padded in front with zeros, and each prompt's number of zeros, (P,)."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    padding = torch.tensor([longest - len(prompt) for prompt in prompts])
    return ids.to(device), padding.to(device)
