"""Compiled loops of the sparse update on CPU; ``protocol.weights.sparsify`` defines what they compute, to the bit.

A chunk of 4096 is accumulated and searched while it lies in the first-level cache, so that memory is read and written
once. Its k-th largest magnitude is bracketed by counting how many entries reach a bound, sixteen comparisons an
instruction, starting from the previous chunk's bound; the few entries that reach it are then ranked exactly.

Numba compiles the loops on first use and caches them on disk. Plain torch has no such pass and takes more than four
times as long (``scripts/bench/sparse_update.py``). Nothing here contracts a product and a sum into one rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from node.kernels.cpu_prefetch import AHEAD, prefetch

Array = NDArray[Any]

_CHUNK = 4096  # CHUNK_ELEMENTS, as a constant for the compiler
_MAGNITUDE = np.int32(0x7FFFFFFF)
_STEP = 1 << 20  # the first move of a bound: an eighth of an octave
_MARGIN = 1 << 19  # how far below the previous chunk's bound the search starts


@njit(nogil=True, cache=True)
def _count(keys: Array, length: int, bound: int) -> np.int32:
    """Returns how many of the first ``length`` keys reach ``bound``."""
    limit = np.int32(bound)
    total = np.int32(0)
    for i in range(length):
        total += np.int32(keys[i] >= limit)
    return total


@njit(nogil=True, cache=True)
def _bracket(keys: Array, length: int, kept: int, guess: int, slack: int) -> int:
    """A bound that ``kept`` to ``kept + slack`` keys reach or, if too many are equal, the highest that enough reach."""
    low, high, step = 0, 1 << 31, _STEP  # at least kept reach low; fewer reach high
    bound = min(max(guess, 0), high - 1)
    while True:
        reached = _count(keys, length, bound)
        if reached >= kept:
            low = bound
            if reached <= kept + slack:
                return low
        else:
            high = bound
        if high - low <= 1:
            return low
        if low == 0:
            bound = max(high - step, 1)
            if bound >= high:
                bound = low + (high - low) // 2
        elif high == 1 << 31:
            bound = min(low + step, high - 1)
        else:
            bound = low + (high - low) // 2
        step *= 2


@njit(nogil=True, cache=True)
def ones(word: np.uint64) -> np.int64:
    """Returns how many bits of a 64-bit word are set (the compiler turns this form into one instruction)."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(nogil=True, cache=True)
def _gather(keys: Array, bound: int, found: Array, found_keys: Array) -> int:
    """Writes indices and keys, in order, of the keys that reach ``bound``: 64 comparisons to a word, then its ones."""
    limit = np.int32(bound)
    total = 0
    for start in range(0, _CHUNK, 64):
        block = keys[start : start + 64]
        word = np.uint64(0)
        for i in range(64):
            word |= np.uint64(block[i] >= limit) << np.uint64(i)
        while word != 0:
            lowest = word & (~word + np.uint64(1))
            found[total] = start + ones(lowest - np.uint64(1))
            total += 1
            word ^= lowest
    for i in range(total):
        found_keys[i] = keys[found[i]]
    return total


@njit(nogil=True, cache=True)
def select(
    residual: Array,  # (n,) float32, becomes decay · residual + delta
    delta: Array,  # (n,) float32
    decay: np.float32,
    kept: int,
    first: int,
    last: int,
    indices: Array,  # (N,) uint16, written for these chunks
    values: Array,  # (N,) float32, likewise
) -> int:
    """Accumulates chunks ``first`` to ``last`` and selects their entries. Returns the key of the largest entry."""
    keys = np.empty(_CHUNK, np.int32)
    found = np.empty(_CHUNK + 1, np.int32)
    found_keys = np.empty(_CHUNK + 1, np.int32)
    largest, guess = 0, 0x3A000000
    for chunk in range(first, last):
        e = residual[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        change = delta[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        count = (kept * len(e) + _CHUNK - 1) // _CHUNK
        for i in range(len(e)):
            e[i] = decay * e[i] + change[i]
        bits = e.view(np.int32)
        for i in range(len(e)):
            keys[i] = bits[i] & _MAGNITUDE
        keys[len(e) :] = -1
        bound = _bracket(keys, _CHUNK, count, guess, count // 2 + 16)
        total = _gather(keys, bound, found, found_keys)
        bound = _bracket(found_keys, total, count, bound, 0)
        guess = bound - _MARGIN
        equal = count - _count(found_keys, total, bound + 1) if bound < _MAGNITUDE else count
        place = chunk * kept
        for i in range(total):
            key = found_keys[i]
            if key < bound:
                continue
            if key == bound:
                if equal == 0:
                    continue
                equal -= 1
            largest = max(largest, key)
            indices[place] = found[i]
            values[place] = e[found[i]]
            place += 1
    return largest


@njit(nogil=True, cache=True)
def sum_of_squares(values: Array, factor: np.float32) -> np.int64:
    """Returns Σu² of the steps u = rint(value · factor)."""
    total = np.int64(0)
    for i in range(len(values)):
        step = np.int64(np.rint(values[i] * factor))
        total += step * step  # below 2^32, so that 2^31 of them cannot overflow
    return total


@njit(nogil=True, cache=True)
def quantise_values(values: Array, factor: np.float32, bounds: Array, codes: Array, sums: Array, counts: Array) -> None:
    """Writes ``codes`` (N,) and adds to each code's Σu and count, both (4,)."""
    for i in range(len(values)):
        step = np.int64(np.rint(values[i] * factor))
        code = (step >= bounds[0]) + (step >= bounds[1]) + (step >= bounds[2])
        codes[i] = code
        sums[code] += step
        counts[code] += 1


@njit(nogil=True, cache=True)
def subtract(residual: Array, kept: int, indices: Array, codes: Array, codebook: Array) -> None:
    """Subtracts what is sent from the residual."""
    for i in range(len(indices)):
        position = (i // kept) * _CHUNK + indices[i]
        residual[position] = residual[position] - codebook[codes[i]]


@njit(nogil=True, cache=True)
def add(total: Array, contributors: Array, kept: int, indices: Array, codes: Array, codebook: Array) -> None:
    """Adds one peer's entries to the sums (n,), and 1 to the contributors (n,) at each of them."""
    count = len(indices)
    for i in range(count):
        if i + AHEAD < count:
            later = ((i + AHEAD) // kept) * _CHUNK + np.int64(indices[i + AHEAD])
            prefetch(total, later)
            prefetch(contributors, later)
        position = (i // kept) * _CHUNK + np.int64(indices[i])
        total[position] += codebook[codes[i]]
        contributors[position] += 1


@njit(nogil=True, cache=True)
def divide(total: Array, contributors: Array, kept: int, indices: Array) -> None:
    """Divides the sums where several contributed, and marks these places as done for the peers that follow."""
    count = len(indices)
    for i in range(count):
        if i + AHEAD < count:
            later = ((i + AHEAD) // kept) * _CHUNK + np.int64(indices[i + AHEAD])
            prefetch(total, later)
            prefetch(contributors, later)
        position = (i // kept) * _CHUNK + np.int64(indices[i])
        if contributors[position] > 1:
            total[position] /= np.float32(contributors[position])
            contributors[position] = 1
