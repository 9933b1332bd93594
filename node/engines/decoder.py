"""The interface between engine and decoder: a batch of rows that each grow by one token a step, or by more where the
engine guessed what follows.

The engine decides which rows join and leave; the decoder keeps keys and values and computes logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Cache = TypeVar("Cache")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled(Generic[Cache]):
    """P prompts, computed once; each may be continued by as many rows as ``prefill`` was told."""

    logits: torch.Tensor  # (P, V) for the token after each prompt
    lengths: tuple[int, ...]  # tokens of each prompt
    cache: Cache  # keys and values, or where the decoder holds them


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """Tokens that follow each row's newest one in a pass: guesses, to be verified; of the last ``given`` rows what they
    read next, and of their logits those after the last one alone are wanted."""

    tokens: NDArray[np.int64]  # (d,) the rows' one after another
    counts: NDArray[np.int64]  # (n,) of each row, d together
    given: int = 0

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

    def following(self, newest: torch.Tensor) -> torch.Tensor:
        """Returns the token of each position of the pass, (n + d,), from the rows' newest ones, (n,)."""
        ids = torch.empty(len(self.counts) + len(self.tokens), dtype=torch.int64, device=newest.device)
        is_newest = torch.from_numpy(self.after == 0).to(newest.device)
        ids[is_newest] = newest
        ids[~is_newest] = torch.from_numpy(self.tokens).to(newest.device)
        return ids

    @property
    def read(self) -> NDArray[np.int64]:
        """The positions whose logits are wanted."""
        lasts = np.cumsum(self.counts + 1) - 1
        guessing = len(self.counts) - self.given
        guessed = lasts[guessing - 1] + 1 if guessing else 0
        read: NDArray[np.int64] = np.concatenate([np.arange(guessed), lasts[guessing:]])
        return read


@dataclass(frozen=True, slots=True)
class Parted:
    """A row that has left the batch and may come back: its keys and values stay where they are."""

    place: int
    position: int  # of its newest token, prompt included
    prompt: int | None  # the name of its shared prompt


class OneBatch:
    """The part of ``Decoder`` that is about several batches, for one that has one."""

    @property
    def batches(self) -> int:
        return 1

    def side_by_side(self, works: Sequence[Callable[[Self], Result]]) -> list[Result]:
        (work,) = works
        return [work(self)]


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

    def prefill(self, prompts: Sequence[Sequence[int]], completions: Sequence[int]) -> Prefilled[Cache]:
        """Computes prompts, padded to the longest of them, without adding rows to the batch.

        ``completions`` rows of each will join and end; then its keys and values are no longer held.
        """

    def join(self, prefilled: Prefilled[Cache], which: Sequence[int]) -> None:
        """Adds one row at the end of the batch for each entry of ``which``, an index into the prefilled prompts."""

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        """Rows ``ended`` end. The batch shrinks to ``rows``: row ``tails[i]`` becomes ``holes[i]``."""

    @property
    def verifies_drafts(self) -> bool:
        """Whether ``step`` takes drafts, and rows may part."""

    def part(self, rows: Sequence[int]) -> list[Parted]:
        """Returns what brings ``rows`` back. They must be among those that the next ``leave`` takes out without ending
        them."""

    def rejoin(self, parted: Sequence[Parted], tokens: Sequence[int]) -> None:
        """Adds these at the end of the batch, each with room for so many tokens more."""

    def drop(self, parted: Parted) -> None:
        """A row that has parted ends."""

    def step(self, tokens: torch.Tensor, drafts: Drafts | None = None) -> torch.Tensor:
        """Appends one token to each row, (n,) int64. Returns the logits of the next ones, (n, V).

        With ``drafts`` it appends those too, and returns the logits after each position of ``Drafts.read``, all n + d
        of them where none are given.
        """

    def take_back(self, counts: NDArray[np.int64]) -> None:
        """Drops the last ``counts``, (n,), tokens of each row: guesses that were wrong."""

    @property
    def batches(self) -> int:
        """How many batches may grow at a time: more than one where a batch waits for other machines."""

    def side_by_side(self, works: Sequence[Callable[[Self], Result]]) -> list[Result]:
        """Calls each of 1 to ``batches`` works with a decoder of a batch of its own. While one waits others compute,
        one at a time and in an order that depends on the works alone."""


def right_aligned(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the prompts as one matrix (P, L), padded in front with zeros, and each prompt's number of zeros, (P,)."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    padding = torch.tensor([longest - len(prompt) for prompt in prompts])
    return ids.to(device), padding.to(device)
