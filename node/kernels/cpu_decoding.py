"""Compiled loops of a decoding step on a CPU in float32: what lies between its matrix products.

A step of a few rows is a thousand short operations, most of whose time is spent before and after the arithmetic.
``rms_norm``, ``rotate_heads`` and ``attend`` are one call each where torch needs six to nine. They run on one thread.

    attend   s_i = q·k_i / √d over a row's own slots    l = log Σ exp s_i    o = Σ exp(s_i - l) v_i
             joined with attention over a part that was computed elsewhere, which has l' and o':
             o ← σ(l - l') o + σ(l' - l) o'

Powers are of two, 2^x = 2^k 2^(x-k), k the nearest integer towards zero from x - ½, the second factor by a polynomial
(relative error below 1e-6). A NaN stays one.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

HEAD_MULTIPLE: Final = 4  # of a head's size
NO_SCALE: Final[Array] = np.empty((0, 0), np.float32)
# (other, its logarithms, places) of ``attend`` where there is no other part
NO_OTHER_PART: Final = (np.empty((0, 0, 0), np.float32), np.empty((0, 0, 0), np.float32), np.empty(0, np.int64))

# Sums may be taken in any order and with fused products: as in a library's matrix product, the order is the compiler's.
_LOOSE: Final = {"contract", "reassoc", "nsz"}
_LANES: Final = 16
_LOG2_E = np.float32(1 / math.log(2))
_LN_2 = np.float32(math.log(2))
_LEAST_POWER = np.float32(-126)  # of a normal number
_HALF, _ONE = np.float32(0.5), np.float32(1)
_BIAS, _EXPONENT_UNIT = np.float32(127), np.float32(1 << 23)  # of a float32's exponent bits
_C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 7))


@njit(nogil=True, cache=True, fastmath=_LOOSE)
def rms_norm(x: Array, weight: Array, epsilon: float, out: Array) -> None:
    """``out`` = x / √(mean x² + ε) · weight, (n, size) each; ``weight`` is (size,)."""
    size = x.shape[1]
    for row in range(x.shape[0]):
        source, target = x[row], out[row]
        scale = _inverse_root(source, epsilon)
        for i in range(size):
            target[i] = source[i] * scale * weight[i]


@njit(nogil=True, cache=True, fastmath=_LOOSE)
def rotate_heads(heads: Array, scale: Array, rotations: Array, epsilon: float) -> None:
    """Norms each query and key and rotates its pairs of neighbours, in place.

    ``heads`` is (n, kv heads, queries + 2, size); ``scale`` (queries + 1, size), or ``NO_SCALE``;
    ``rotations`` (n, size) cosines and sines in turn, by row.
    """
    rows, kv_heads, parts, size = heads.shape
    for row in range(rows):
        turn = rotations[row]
        for head in range(kv_heads):
            for part in range(parts - 1):
                vector = heads[row, head, part]
                if len(scale):
                    weight, factor = scale[part], _inverse_root(vector, epsilon)
                    for i in range(size):
                        vector[i] *= factor * weight[i]
                for i in range(0, size, 2):
                    a, b = vector[i], vector[i + 1]
                    vector[i] = a * turn[i] - b * turn[i + 1]
                    vector[i + 1] = a * turn[i + 1] + b * turn[i]


@njit(nogil=True, cache=True)
def attend(
    heads: Array,  # (n, kv heads, queries + 2, size) rotated queries, key and value of each position of the pass
    keys: Array,  # (rows, kv heads, size, slots)
    values: Array,  # (rows, kv heads, slots, size)
    starts: Array,  # (rows,) each row's first slot
    row_of: Array,  # (m,) the row of each of the first m positions; a row's positions in their order
    slots: Array,  # (m,) where each one's key and value belong; below 0: the position is left out
    other: Array,  # (p, queries, size) attention over another part of the past; p = 0: there is none
    other_logs: Array,  # (p, queries, 1) its logarithms
    places: Array,  # (n × kv heads,) where in ``other`` those of each position and head are
    mixed: Array,  # (n, kv heads, queries, size)
) -> None:
    """Writes keys and values into their slots, and attention over the row's slots up to each position's to ``mixed``,
    for the first m positions."""
    kv_heads, queries, size = mixed.shape[1:]
    longest = 0
    for position in range(len(slots)):
        longest = max(longest, slots[position] + 1)
    wanted = np.empty((queries, size), np.float32)
    scores = np.empty((queries, longest), np.float32)
    bits = np.empty(longest, np.int32)
    powers = bits.view(np.float32)
    lanes = np.empty(_LANES, np.float32)
    scale = _LOG2_E / np.float32(math.sqrt(size))
    for position in range(len(slots)):
        row, now = row_of[position], slots[position]
        if now < 0:
            continue
        first = starts[row]
        for head in range(kv_heads):
            newest, target = heads[position, head], mixed[position, head]
            for i in range(size):
                keys[row, head, i, now] = newest[queries, i]
            values[row, head, now] = newest[queries + 1]
            for query in range(queries):
                for i in range(size):
                    wanted[query, i] = newest[query, i] * scale
            _scores(wanted, keys[row, head], first, now + 1, scores)
            target[:] = 0
            for query in range(queries):
                line = scores[query, : now + 1 - first]
                highest = _highest(line, lanes)
                _split_powers(line, highest, bits)
                total = _powers(line, powers)
                _mix(line, values[row, head], first, target[query])
                share = _ONE
                if len(other):
                    place = places[position * kv_heads + head]
                    log = (highest + np.float32(math.log2(total))) * _LN_2
                    share = _ONE / (_ONE + np.float32(math.exp(other_logs[place, query, 0] - log)))
                    _scaled(target[query], share / total)
                    _add_scaled(target[query], other[place, query], _ONE - share)
                else:
                    _scaled(target[query], _ONE / total)


@njit(nogil=True, cache=True, fastmath=_LOOSE)
def _inverse_root(vector: Array, epsilon: float) -> np.float32:
    total = np.float32(0)
    for i in range(len(vector)):
        total += vector[i] * vector[i]
    return np.float32(1 / math.sqrt(total / len(vector) + epsilon))


@njit(nogil=True, cache=True, fastmath=_LOOSE)
def _scores(queries: Array, keys: Array, first: int, last: int, scores: Array) -> None:
    """Four coordinates at a time: the line of scores is read and written once for them."""
    for query in range(len(queries)):
        line = scores[query, : last - first]
        line[:] = 0
        for i in range(0, len(keys), 4):
            a, b, c, d = queries[query, i], queries[query, i + 1], queries[query, i + 2], queries[query, i + 3]
            one, two, three, four = keys[i], keys[i + 1], keys[i + 2], keys[i + 3]
            for slot in range(last - first):
                at = first + slot
                line[slot] += a * one[at] + b * two[at] + c * three[at] + d * four[at]


@njit(nogil=True, cache=True, fastmath=_LOOSE)
def _mix(weights: Array, values: Array, first: int, target: Array) -> None:
    """Adds Σ weight · value to ``target``, four slots at a time."""
    count = len(weights)
    whole = count // 4 * 4
    for slot in range(0, whole, 4):
        a, b, c, d = weights[slot], weights[slot + 1], weights[slot + 2], weights[slot + 3]
        at = first + slot
        one, two, three, four = values[at], values[at + 1], values[at + 2], values[at + 3]
        for i in range(len(target)):
            target[i] += a * one[i] + b * two[i] + c * three[i] + d * four[i]
    for slot in range(whole, count):
        _add_scaled(target, values[first + slot], weights[slot])


@njit(nogil=True, cache=True)
def _highest(line: Array, lanes: Array) -> Any:
    """Lanes, since a compiler takes no maximum of floats side by side by itself."""
    whole = len(line) // _LANES * _LANES
    lanes[:] = line[0]
    for start in range(0, whole, _LANES):
        part = line[start : start + _LANES]
        for i in range(_LANES):
            lanes[i] = part[i] if part[i] > lanes[i] else lanes[i]
    highest = lanes[0]
    for i in range(_LANES):
        highest = lanes[i] if lanes[i] > highest else highest
    for i in range(whole, len(line)):
        highest = line[i] if line[i] > highest else highest
    return highest


@njit(nogil=True, cache=True, fastmath={"contract"})
def _split_powers(line: Array, highest: np.float32, bits: Array) -> None:
    """Of x = ``line`` - ``highest``: writes the bits of 2^k to ``bits`` and 2^(x-k) to ``line``."""
    for i in range(len(line)):
        x = line[i] - highest
        x = _LEAST_POWER if x < _LEAST_POWER else x
        k = np.float32(np.int32(x - _HALF))
        bits[i] = np.int32((k + _BIAS) * _EXPONENT_UNIT)
        r = x - k
        line[i] = _ONE + r * (_C1 + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * _C6)))))


@njit(nogil=True, cache=True, fastmath=_LOOSE)
def _powers(line: Array, factors: Array) -> Any:
    total = np.float32(0)
    for i in range(len(line)):
        line[i] *= factors[i]
        total += line[i]
    return total


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_scaled(target: Array, source: Array, factor: np.float32) -> None:
    for i in range(len(target)):
        target[i] += factor * source[i]


@njit(nogil=True, cache=True)
def _scaled(target: Array, factor: np.float32) -> None:
    for i in range(len(target)):
        target[i] *= factor
