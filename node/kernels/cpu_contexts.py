"""Compiled loops of drafting: what followed earlier occurrences of a context, kept in a table.

A context is the place in the answer, or the last 2, 3, 5 or 8 tokens of prompt and completion, or all of them. Each
has one entry,

    tag, the tokens that followed it, how often each did lately

in a table of 2^b entries, at the place that the context's hash says; of two contexts with one place the newer has it.

The distribution q of the next token is estimated from the shortest context to the longest, of whose n occurrences n_v
were followed by the token v (Dirichlet smoothing by the shorter context; MacKay and Peto: A hierarchical Dirichlet
language model, 1995):

    q(v) ← (n_v + s q(v)) / (n + s)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

PLACE, WHOLE = -1, 0
ORDERS: Final = (PLACE, 2, 3, 5, 8, WHOLE)  # tokens of context, shortest first
LONGEST_ORDER: Final = 8
SUCCESSORS: Final = 7  # of a context that are kept; the rarest makes room
ENTRY_NUMBERS: Final = 1 + 2 * SUCCESSORS + 1  # tag, tokens, counts, and one unused: a line of the processor's cache

_ORDERS: Final = np.array(ORDERS)
_COUNTS: Final = 1 + SUCCESSORS  # where an entry's counts begin
_MOST_SEEN: Final = 32  # of a context's occurrences; then all of its counts are halved
_STRENGTH: Final = 0.3  # s
_MULTIPLIER, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_ONE = np.uint64(1)
_HALF_WORD, _SHIFT_1, _SHIFT_2 = np.uint64(32), np.uint64(30), np.uint64(27)


@njit(nogil=True, cache=True)
def extended(whole: np.uint64, token: int) -> Any:
    """Returns the hash of a sequence with one token more."""
    state = (whole + _MULTIPLIER * (np.uint64(token) + _ONE)) * _FIRST
    return (state ^ (state >> _SHIFT_1)) * _SECOND


@njit(nogil=True, cache=True)
def shift(tail: Array, token: int) -> None:
    """``tail``, (8,), are the last tokens, -1 before the first."""
    for i in range(LONGEST_ORDER - 1):
        tail[i] = tail[i + 1]
    tail[LONGEST_ORDER - 1] = token


@njit(nogil=True, cache=True)
def distribution(
    tail: Array, whole: np.uint64, place: np.uint64, table: Array, candidates: Array, shares: Array
) -> Any:
    """Writes the tokens of q, as many as there is room for, and their probabilities. Returns how many there are.
    ``whole`` is the hash of all tokens, ``place`` one of the place in the answer."""
    found = 0
    for which in range(len(_ORDERS)):
        if tail[LONGEST_ORDER - max(1, _ORDERS[which])] < 0:
            continue
        key = _key(which, tail, whole, place)
        entry = table[np.int64(key & np.uint64(len(table) - 1))]
        if entry[0] != _tag(key):
            continue
        seen = 0
        for i in range(SUCCESSORS):
            seen += entry[_COUNTS + i]
        unit = 1.0 / (seen + _STRENGTH)
        for j in range(found):
            shares[j] *= _STRENGTH * unit
        for i in range(SUCCESSORS):
            if entry[_COUNTS + i] == 0:
                continue
            j = 0
            while j < found and candidates[j] != entry[1 + i]:
                j += 1
            if j == found:
                if found == len(candidates):
                    continue
                candidates[j], shares[j] = entry[1 + i], 0.0
                found += 1
            shares[j] += entry[_COUNTS + i] * unit
    return found


@njit(nogil=True, cache=True)
def follow(tail: Array, whole: np.uint64, place: np.uint64, token: int, table: Array) -> None:
    """``token`` has followed these contexts."""
    for which in range(len(_ORDERS)):
        if tail[LONGEST_ORDER - max(1, _ORDERS[which])] < 0:
            continue
        key = _key(which, tail, whole, place)
        entry, tag = table[np.int64(key & np.uint64(len(table) - 1))], _tag(key)
        if entry[0] != tag:
            entry[:] = 0
            entry[0] = tag
        seen, at, rarest = 0, -1, 0
        for i in range(SUCCESSORS):
            number = entry[_COUNTS + i]
            seen += number
            at = i if number > 0 and entry[1 + i] == token else at
            rarest = i if number < entry[_COUNTS + rarest] else rarest
        if at < 0:
            at = rarest
            entry[1 + at], entry[_COUNTS + at] = token, 0
        entry[_COUNTS + at] += 1
        if seen >= _MOST_SEEN:
            for i in range(SUCCESSORS):
                entry[_COUNTS + i] //= 2


@njit(nogil=True, cache=True)
def _key(which: int, tail: Array, whole: np.uint64, place: np.uint64) -> Any:
    order = _ORDERS[which]
    key = whole if order == WHOLE else (place if order == PLACE else np.uint64(order))
    for i in range(LONGEST_ORDER - max(0, order), LONGEST_ORDER):
        key = extended(key, tail[i])
    key = extended(key, which)
    return key ^ (key >> _SHIFT_2)


@njit(nogil=True, cache=True)
def _tag(key: np.uint64) -> Any:
    """Never 0, which is an empty entry's."""
    return np.int32(np.uint32(key >> _HALF_WORD) | np.uint32(1))
