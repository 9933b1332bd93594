"""Guesses for the rows of one batch, and which of them were right.

A guess is verified by sampling: the pass computes the logits after each guess, a token is drawn from each of them by
the random number of its completion and position (``draws``), and a guess holds if it is the token drawn. So the tokens
are those that would be drawn one by one: not only their distribution is unchanged, but every sample, as far as a row's
logits do not depend on how many positions a pass has. MKL's products do not in the nodes' environment
(``node.compute_environment``), nor does compiled attention; elsewhere they differ by rounding. Which passes verify how
much depends on measured times, and only that does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from node.engines.decoder import Drafts
from node.engines.drafting.answer_index import AnswerIndex, RowStates
from node.engines.drafting.pass_choice import PassSeconds, guesses_worth_verifying, may_pay, size_of
from node.kernels.cpu_drafts import GREEDY, propose, take

MOST_GUESSES: Final = 8  # a row and pass
LEAST_CHANCE: Final = 0.1  # less likely guesses are not looked at
_FINE_SECONDS: Final = 1e-5

Ints = NDArray[np.int64]
Uniforms = Callable[[int], NDArray[np.float64] | None]  # (steps, n) of the present rows' next draws; None: greedy


@dataclass(slots=True)
class DraftCounts:
    """What an engine's guesses came to so far."""

    passes: int = 0
    guesses: int = 0
    held: int = 0
    held_share: float = 0.7  # lately

    def verified(self, guesses: int, held: int) -> None:
        self.passes += 1
        self.guesses += guesses
        self.held += held
        self.held_share += 0.05 * (held / guesses - self.held_share)


def _pass_clock() -> Callable[[], float]:
    """Returns the thread's own processor time, which other programs do not lengthen, where it is fine enough."""
    fine = time.get_clock_info("thread_time").resolution <= _FINE_SECONDS
    return time.thread_time if fine else time.perf_counter


class Drafting:
    """What an engine keeps from one call to the next."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.index = AnswerIndex()
        self.seconds = PassSeconds()
        self.counts = DraftCounts()
        self.clock = clock or _pass_clock()


class RowDrafts:
    """The rows of one batch: those present are the first, in the batch's order."""

    def __init__(self, drafting: Drafting, rows: int, most_positions: int, end_tokens: Sequence[int]) -> None:
        """``most_positions``: of one pass."""
        self._drafting, self._most = drafting, most_positions
        self._end_tokens = np.array(end_tokens, dtype=np.int64)
        self._states = RowStates.of(rows)
        self._tokens = np.zeros((rows, MOST_GUESSES), dtype=np.int64)
        self._chances = np.zeros((rows, MOST_GUESSES))
        self._present = 0  # rows of the pass under way
        self._began: tuple[int, float] | None = None  # the pass under way: its positions, and when
        drafting.index.look_at_waiting()

    def joined(self, rows: slice, prefix_ids: Sequence[int]) -> None:
        """Rows with this prefix, their prompt and what they had before, join."""
        self._states.begin(rows.start, prefix_ids)
        self._states.copy(rows.start, rows)
        self._began = None  # what it took is not a pass's time alone

    def left(self, order: Ints) -> None:
        """Keeps the present rows that ``order`` names, in this order, and drops the others."""
        self._states.copy(order, slice(len(order)))

    def took(self, tokens: Ints, uniforms: Uniforms, kept: Ints) -> None:
        """The present rows keep the first ``kept``, (n,), of their ``tokens``, (steps, n)."""
        index, rows = self._drafting.index, len(kept)
        drawn_by = _numbers(uniforms, *tokens.shape)
        take(tokens, drawn_by, kept, *self._states.first(rows), index.table, index.weights, index.counts)

    def next_pass(self, remaining: Ints, uniforms: Uniforms) -> Drafts | None:
        """Returns the guesses that the next pass verifies, None for none. ``remaining``: how many tokens each present
        row may still have."""
        drafting, now, rows = self._drafting, self._drafting.clock(), len(remaining)
        if self._began is not None:
            positions, began = self._began
            drafting.seconds.took(positions, now - began)
        drafts = self._chosen(remaining, uniforms)
        self._present = rows
        self._began = rows if drafts is None else rows + len(drafts.tokens), now
        return drafts

    @property
    def length(self) -> float:
        """How long the pass under way is expected to be against one without guesses."""
        assert self._began is not None
        seconds, (positions, _) = self._drafting.seconds, self._began
        return seconds.of(size_of(positions)) / seconds.of(size_of(self._present))

    def _chosen(self, remaining: Ints, uniforms: Uniforms) -> Drafts | None:
        rows, seconds = len(remaining), self._drafting.seconds
        most = min(self._most, rows * (1 + MOST_GUESSES))
        if not may_pay(rows, most, self._drafting.counts.held_share, seconds):
            return None
        tokens, chances = self._proposed(remaining - 1, uniforms)  # the token after the last guess is sampled too
        flat = chances.ravel()
        order = np.argsort(-flat, kind="stable")[: np.count_nonzero(flat)]
        count = guesses_worth_verifying(rows, flat[order], self._most, seconds)
        if count == 0:
            return None
        places = np.sort(order[:count])  # row by row; a row's chances never rise, so that its first guesses are taken
        return Drafts(tokens.ravel()[places], np.bincount(places // MOST_GUESSES, minlength=rows))

    def _proposed(self, most: Ints, uniforms: Uniforms) -> tuple[Ints, NDArray[np.float64]]:
        """Returns at most ``most`` guesses of each row and their chances, (n, MOST_GUESSES) each."""
        index, rows = self._drafting.index, len(most)
        tokens, chances = self._tokens[:rows], self._chances[:rows]
        drawn_by, states = _numbers(uniforms, MOST_GUESSES, rows), self._states.first(rows)
        learnt = index.table, index.weights, index.counts
        propose(drawn_by, most, self._end_tokens, LEAST_CHANCE, *states, *learnt, tokens, chances)
        return tokens, chances


def _numbers(uniforms: Uniforms, steps: int, rows: int) -> NDArray[np.float64]:
    numbers = uniforms(steps)
    return np.full((steps, rows), GREEDY) if numbers is None else numbers


def verified(drafts: Drafts, tokens: Ints, logps: NDArray[np.float32]) -> tuple[Ints, NDArray[Any], Ints]:
    """Returns what each row has sampled: tokens and log-probabilities, (steps, n), and how many of them, (n,): one for
    each guess that holds after others that do, and one more.

    ``tokens`` and ``logps`` are those drawn after each position of the pass, (n + d,).
    """
    steps = int(drafts.counts.max(initial=0)) + 1
    firsts = np.cumsum(drafts.counts + 1) - (drafts.counts + 1)
    after = np.arange(steps)[:, None]
    places = np.minimum(firsts + after, firsts + drafts.counts)  # (steps, n)
    guessed = np.full(len(tokens), -1, dtype=np.int64)  # what was guessed to come after each position
    guessed[:-1][drafts.after[1:] > 0] = drafts.tokens
    held = np.logical_and.accumulate((tokens == guessed)[places], axis=0)
    taken: Ints = held.sum(0) + 1
    return tokens[places], logps[places], taken
