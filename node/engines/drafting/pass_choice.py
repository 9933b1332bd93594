"""How many guesses a pass verifies: as many as save more time than they take, by what passes took lately.

A pass of N positions takes seconds(N). One of n rows samples a token for seconds(n) / n, and so much is saved by a
guess that holds. A pass verifies the guesses whose Σ chance · saved exceeds the seconds that they add by most.

Where arithmetic bounds a pass, seconds(N) is proportional to N, and no guess pays. Where the bytes of the weights bound
it, or what it costs to begin one, more positions are nearly free: in few rows, of large models. All of this changes
with the number of rows, with what else the machine does, and with its processor. So ``PassSeconds`` is measured, on the
passes themselves, and one pass in ``TRIAL_EVERY`` has the number of positions that was measured longest ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.engines.cache_size import ROW_MULTIPLE

ADVANTAGE: Final = 0.02  # of a pass: what more positions must save
CLEAR_ADVANTAGE: Final = 0.05  # of a pass: where less can be saved, guesses are not even looked for
TRIAL_EVERY: Final = 32  # passes
EARLY_TRIAL_EVERY: Final = 4  # until so many sizes are known:
SIZES_KNOWN_EARLY: Final = 4
_DOWN, _UP = 0.3, 0.05  # the share of a difference that is taken over: other programs only ever make a pass longer
_SHORTEST: Final = 1e-9  # seconds; a coarse clock may stand still
_LONGEST_STEP: Final = 2.0  # times what was expected; a pass that took longer says no more


def size_of(positions: int) -> int:
    """Returns how many multiples of ``ROW_MULTIPLE`` positions a pass computes."""
    return -(-positions // ROW_MULTIPLE)


@dataclass(slots=True)
class PassSeconds:
    """How long passes take, by size: a function of the durations given alone."""

    _seconds: dict[int, float] = field(default_factory=dict)
    _measured_at: dict[int, int] = field(default_factory=dict)  # by number of the pass
    _passes: int = 0

    def took(self, positions: int, seconds: float) -> None:
        size, seconds = size_of(positions), max(seconds, _SHORTEST)
        before = self._seconds.get(size, seconds)
        seconds = min(seconds, _LONGEST_STEP * before)
        self._seconds[size] = before + (_DOWN if seconds < before else _UP) * (seconds - before)
        self._passes += 1
        self._measured_at[size] = self._passes

    @property
    def trial_is_due(self) -> bool:
        every = TRIAL_EVERY if len(self._seconds) >= SIZES_KNOWN_EARLY else EARLY_TRIAL_EVERY
        return self._passes % every == every - 1

    def longest_unmeasured(self, sizes: Sequence[int]) -> int:
        """Returns the size that was measured longest ago, of equals the one nearest to twice the least."""
        return min(sizes, key=lambda size: (self._measured_at.get(size, 0), abs(size - 2 * sizes[0])))

    def of(self, size: int) -> float:
        """Returns the seconds of a pass: as measured, on the line between two sizes measured, in proportion beyond the
        largest, and never more than a larger one took."""
        upper_bound = min((seconds for other, seconds in self._seconds.items() if other >= size), default=None)
        if size in self._seconds:
            return upper_bound or self._seconds[size]
        below = max((other for other in self._seconds if other < size), default=None)
        if upper_bound is None:
            return 1.0 if below is None else self._seconds[below] * size / below
        if below is None:
            return upper_bound
        above = min(other for other in self._seconds if other > size)
        share = (size - below) / (above - below)
        return min(upper_bound, (1 - share) * self._seconds[below] + share * self._seconds[above])


def may_pay(rows: int, most: int, held_share: float, seconds: PassSeconds) -> bool:
    """Returns whether looking for guesses is worth its own time: whether up to ``most`` positions would save clearly if
    as many guesses held as did lately."""
    if seconds.trial_is_due:
        return most > rows
    least = size_of(rows)
    alone = seconds.of(least)
    for size in range(least, size_of(most) + 1):
        guesses = min(size * ROW_MULTIPLE, most) - rows
        if held_share * guesses * alone / rows - (seconds.of(size) - alone) > CLEAR_ADVANTAGE * alone:
            return True
    return False


def guesses_worth_verifying(rows: int, chances: NDArray[np.float64], most: int, seconds: PassSeconds) -> int:
    """Returns how many of the guesses a pass of ``rows`` rows verifies; ``most`` positions at most.

    ``chances`` descend: how likely each guess is to be reached and to hold.
    """
    least = size_of(rows)
    positions = min(rows + len(chances), most)
    sizes = range(least, size_of(positions) + 1)
    if seconds.trial_is_due:
        return min(positions, seconds.longest_unmeasured(sizes) * ROW_MULTIPLE) - rows
    alone = seconds.of(least)
    saved = np.cumsum(chances) * (alone / rows)
    best, best_net = 0, 0.0
    for size in sizes:
        guesses = min(positions, size * ROW_MULTIPLE) - rows
        net = (float(saved[guesses - 1]) if guesses else 0.0) - (seconds.of(size) - alone)
        if net > best_net + (ADVANTAGE * alone if size > least else 0):
            best, best_net = guesses, net
    return best
