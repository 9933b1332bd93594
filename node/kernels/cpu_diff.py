"""Compiled loops of the weight diff on CPU; ``protocol.weights.weight_diff`` and ``…rice`` define what they compute.

Pairs of patterns are compared 64 at a time into one word, and only its ones are visited: if one weight in a hundred has
changed, finding the changes costs little more than reading memory. Numba compiles the loops on first use and caches
them on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from node.kernels.cpu_prefetch import AHEAD, prefetch
from node.kernels.cpu_top_k import ones

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def write_changes(base: Array, target: Array, start: int, positions: Array, zigzags: Array) -> tuple[int, int]:
    """Writes where two arrays (n,) of patterns differ, from ``start`` on (a multiple of 128), and by how much.

    Stops when ``positions`` has room for fewer than 128 more. Returns where it stopped and how many changes it wrote.
    """
    whole = len(base) // 128 * 128
    old_pairs, new_pairs = base[:whole].view(np.int32), target[:whole].view(np.int32)
    count = 0
    while start < whole and count + 128 <= len(positions):
        old, new = old_pairs[start // 2 : start // 2 + 64], new_pairs[start // 2 : start // 2 + 64]
        word = np.uint64(0)
        for i in range(64):
            word |= np.uint64(old[i] != new[i]) << np.uint64(i)
        while word != 0:
            lowest = word & (~word + np.uint64(1))
            place = start + 2 * ones(lowest - np.uint64(1))
            for position in range(place, place + 2):
                positions[count] = position
                zigzags[count] = _zigzag(base[position], target[position])
                count += base[position] != target[position]
            word ^= lowest
        start += 128
    if start == whole and count + 128 <= len(positions):
        for position in range(start, len(base)):
            positions[count] = position
            zigzags[count] = _zigzag(base[position], target[position])
            count += base[position] != target[position]
        start = len(base)
    return start, count


@njit(nogil=True, cache=True)
def _zigzag(old: np.uint16, new: np.uint16) -> np.int64:
    step = np.int64(np.int16(new - old))
    return ((step << 1) ^ (step >> 63)) & 0xFFFF


@njit(nogil=True, cache=True)
def read_low(planes: Array, low: Array) -> None:
    """Sets bit p of value i to bit i mod 8 of byte ⌊i/8⌋ of plane p: at most 8 planes (p, b), 8 b values of one byte.

    ``low`` is zero. Eight bytes, one of each plane, are a matrix of bits; it is transposed (Hacker's Delight, 7-3).
    """
    matrices = low.view(np.uint64)
    for plane in range(len(planes)):
        row, shift = planes[plane], np.uint64(8 * plane)
        for i in range(len(matrices)):
            matrices[i] |= np.uint64(row[i]) << shift
    for i in range(len(matrices)):
        x = matrices[i]
        t = (x ^ (x >> np.uint64(7))) & np.uint64(0x00AA00AA00AA00AA)
        x ^= t ^ (t << np.uint64(7))
        t = (x ^ (x >> np.uint64(14))) & np.uint64(0x0000CCCC0000CCCC)
        x ^= t ^ (t << np.uint64(14))
        t = (x ^ (x >> np.uint64(28))) & np.uint64(0x00000000F0F0F0F0)
        matrices[i] = x ^ t ^ (t << np.uint64(28))


@njit(nogil=True, cache=True)
def read_unary(unary: Array, low: Array, parameter: int, size: int, positions: Array) -> bool:
    """Writes the positions (c,) of changes from the low bits of their gaps and the rest of the gaps in unary.

    ``unary`` is padded with zeros to words of 64 bits. Returns False unless it holds exactly c ones and every position
    is below ``size``.
    """
    words = unary.view(np.uint64)
    count, found, following, zeros = len(positions), 0, np.int64(0), np.int64(0)
    for i in range(len(words)):
        word, used = words[i], np.int64(0)
        if found + ones(word) > count:
            return False
        while word != 0:
            lowest = word & (~word + np.uint64(1))
            place = ones(lowest - np.uint64(1))
            position = following + np.int64(low[found]) + ((zeros + place - used) << parameter)
            positions[found] = position
            following = position + 1
            found += 1
            zeros, used = np.int64(0), place + 1
            word ^= lowest
        zeros += 64 - used
    return bool(found == count and following <= size)


@njit(nogil=True, cache=True)
def add_steps(weights: Array, positions: Array, planes: Array, sign: int) -> None:
    """Adds the zigzag differences in byte planes (2, c), or with ``sign`` -1 subtracts them, modulo 2^16."""
    count = len(positions)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(weights, np.intp(positions[i + AHEAD]))
        zigzag = np.int64(planes[0, i]) | (np.int64(planes[1, i]) << 8)
        step = sign * ((zigzag >> 1) ^ -(zigzag & 1))
        weights[positions[i]] = (np.int64(weights[positions[i]]) + step) & 0xFFFF
