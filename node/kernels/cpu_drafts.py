"""Compiled loops of drafting: what followed earlier occurrences of a context, looked up and kept in a table.

A context is the last 2, 3, 5 or 8 tokens of prompt and completion, or all of them (order 0). Each has one entry,

    tag, token, held, missed: ``token`` followed the context ``held`` times lately, another token ``missed`` times

in a table of 2^b entries, at the place that the context's hash says; of two contexts with one place the newer has it.
An entry whose token is wrong more often than right takes the newer token.

How likely a guess is to hold is measured: each token that is sampled is compared with what every order would have
guessed, and counted by class: order, share of ``held``, and their number. The guess is that of the order whose class
held most often; of several the best looks better than it is, so what these held is counted too, by the chance that they
seemed to have. Old counts fade.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

ORDERS: Final = (0, 8, 5, 3, 2)  # tokens of context; 0: all
LONGEST_ORDER: Final = 8
CLASSES: Final = len(ORDERS) * 16 + 17  # of guesses of one order, and of the best of them
ENTRY: Final = np.dtype([("tag", np.uint32), ("token", np.int32), ("held", np.uint16), ("missed", np.uint16)])

_ORDERS: Final = np.array(ORDERS)
_BEST: Final = len(ORDERS) * 16
_MOST: Final = 255  # of an entry's counts; then both are halved
_FADES_AT = np.float32(1000)  # a class's guesses; then its counts are halved
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
def begin(prefix: Array, tail: Array, table: Array, counts: Array) -> Any:
    """Looks at a prompt: sets ``tail``, (8,), to its last tokens, -1 before the first, and returns its hash. What
    follows its own contexts becomes known, without being counted as a guess."""
    tail[:] = -1
    whole = np.uint64(0)
    for token in prefix:
        _learn(tail, whole, token, table, counts, False)
        whole = extended(whole, token)
        _shift(tail, token)
    return whole


@njit(nogil=True, cache=True)
def take(
    tokens: Array,  # (steps, n) what was sampled
    taken: Array,  # (n,) how many of them each row keeps
    tails: Array,  # (n, 8) its last tokens
    wholes: Array,  # (n,) the hash of all of its tokens
    table: Array,  # (2^b,) of ``ENTRY``
    counts: Array,  # (classes, 2) how often a guess of each class held, of how many
) -> None:
    """Extends each row by its tokens, and the table by what followed what."""
    for row in range(len(taken)):
        for step in range(taken[row]):
            token = tokens[step, row]
            _learn(tails[row], wholes[row], token, table, counts, True)
            wholes[row] = extended(wholes[row], token)
            _shift(tails[row], token)


@njit(nogil=True, cache=True)
def propose(
    tails: Array,  # (n, 8)
    wholes: Array,  # (n,)
    most: Array,  # (n,) guesses a row
    end_tokens: Array,
    floor: float,  # guesses less likely than this are not worth looking at
    table: Array,
    counts: Array,
    tokens: Array,  # (n, k)
    chances: Array,  # (n, k)
) -> None:
    """Writes each row's guesses and how likely each is to be reached and to hold, 0 after the last. A row's chances
    never rise from one guess to the next."""
    tail = np.empty(LONGEST_ORDER, tails.dtype)
    for row in range(len(most)):
        chances[row] = 0
        tail[:] = tails[row]
        whole, chance = wholes[row], 1.0
        for place in range(min(most[row], chances.shape[1])):
            token, likely = _guess(tail, whole, table, counts)
            chance *= likely
            if chance < floor or _among(token, end_tokens):
                break
            tokens[row, place], chances[row, place] = token, chance
            whole = extended(whole, token)
            _shift(tail, token)


@njit(nogil=True, cache=True)
def _guess(tail: Array, whole: np.uint64, table: Array, counts: Array) -> Any:
    """Returns the likeliest next token by any order, and its chance: 0 where none is known."""
    best, token = 0.0, -1
    for which in range(len(_ORDERS)):
        if tail[LONGEST_ORDER - max(1, _ORDERS[which])] < 0:
            continue
        key = _key(which, tail, whole)
        entry = table[np.int64(key & np.uint64(len(table) - 1))]
        if entry.tag == _tag(key):
            chance = _chance(_class_of(which, entry.held, entry.missed), counts)
            if chance > best:
                best, token = chance, entry.token
    return token, _chance(_class_of_best(best), counts) if token >= 0 else 0.0


@njit(nogil=True, cache=True)
def _learn(tail: Array, whole: np.uint64, token: int, table: Array, counts: Array, counted: bool) -> None:
    best, best_right = 0.0, False
    for which in range(len(_ORDERS)):
        if tail[LONGEST_ORDER - max(1, _ORDERS[which])] < 0:
            continue
        key = _key(which, tail, whole)
        place = np.int64(key & np.uint64(len(table) - 1))
        tag = _tag(key)
        if table[place].tag != tag:
            table[place].tag, table[place].token = tag, token
            table[place].held, table[place].missed = 1, 0
            continue
        right = table[place].token == token
        if counted:
            kind = _class_of(which, table[place].held, table[place].missed)
            chance = _chance(kind, counts)
            if chance > best:
                best, best_right = chance, right
            _count(kind, right, counts)
        if right:
            table[place].held += 1
        else:
            table[place].missed += 1
        if table[place].missed > table[place].held:
            table[place].token, table[place].held, table[place].missed = token, 1, 1
        elif table[place].held + table[place].missed > _MOST:
            table[place].held //= 2
            table[place].missed //= 2
    if best > 0:
        _count(_class_of_best(best), best_right, counts)


@njit(nogil=True, cache=True)
def _chance(kind: int, counts: Array) -> Any:
    return (counts[kind, 0] + 0.5) / (counts[kind, 1] + 1.5)


@njit(nogil=True, cache=True)
def _count(kind: int, right: bool, counts: Array) -> None:
    if counts[kind, 1] >= _FADES_AT:
        counts[kind] *= np.float32(0.5)
    counts[kind, 1] += np.float32(1)
    counts[kind, 0] += np.float32(1) if right else np.float32(0)


@njit(nogil=True, cache=True)
def _key(which: int, tail: Array, whole: np.uint64) -> Any:
    order = _ORDERS[which]
    key = whole if order == 0 else np.uint64(order)
    for i in range(LONGEST_ORDER - order, LONGEST_ORDER):
        key = extended(key, tail[i])
    key = extended(key, which)
    return key ^ (key >> _SHIFT_2)


@njit(nogil=True, cache=True)
def _tag(key: np.uint64) -> Any:
    """Never 0, which is an empty entry's."""
    return np.uint32(key >> _HALF_WORD) | np.uint32(1)


@njit(nogil=True, cache=True)
def _class_of(which: int, held: int, missed: int) -> int:
    total = held + missed
    share = 3 if missed == 0 else (2 if 4 * held >= 3 * total else (1 if 2 * held > total else 0))
    number = 0 if total == 1 else (1 if total <= 3 else (2 if total <= 12 else 3))
    return (which * 4 + share) * 4 + number


@njit(nogil=True, cache=True)
def _class_of_best(chance: float) -> int:
    return _BEST + int(16 * chance)


@njit(nogil=True, cache=True)
def _shift(tail: Array, token: int) -> None:
    for i in range(LONGEST_ORDER - 1):
        tail[i] = tail[i + 1]
    tail[LONGEST_ORDER - 1] = token


@njit(nogil=True, cache=True)
def _among(token: int, tokens: Array) -> bool:
    for each in tokens:  # noqa: SIM110  # numba compiles no generator
        if token == each:
            return True
    return False
