"""Compiled loops that write the bits of a sparse update, which ``protocol.weights.sparse_update`` defines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def gaps_of(indices: Array, kept: int, gaps: Array, histogram: Array) -> None:
    """Writes the number of entries skipped before each index of a chunk, (N,), and a histogram of it, (4096,)."""
    for first in range(0, len(indices), kept):
        following = np.int64(0)
        for i in range(first, min(first + kept, len(indices))):
            gap = np.int64(indices[i]) - following
            gaps[i] = gap
            histogram[gap] += 1
            following = np.int64(indices[i]) + 1


@njit(nogil=True, cache=True)
def write_rice(gaps: Array, parameter: int, out: Array) -> None:
    """Writes the coding into ``out``, which is zero and exactly as long."""
    plane_bytes = (len(gaps) + 7) // 8
    for plane in range(parameter):
        bytes_of_plane = out[plane * plane_bytes : (plane + 1) * plane_bytes]
        for i in range(len(gaps) // 8):
            eight = gaps[8 * i : 8 * i + 8]
            byte = 0
            for bit in range(8):
                byte |= ((eight[bit] >> plane) & 1) << bit
            bytes_of_plane[i] = byte
        for i in range(len(gaps) // 8 * 8, len(gaps)):
            bytes_of_plane[i // 8] |= ((gaps[i] >> plane) & 1) << (i % 8)
    unary = out[parameter * plane_bytes :]
    place = 0
    for i in range(len(gaps)):
        place += gaps[i] >> parameter
        unary[place >> 3] |= 1 << (place & 7)
        place += 1


@njit(nogil=True, cache=True)
def write_codes(codes: Array, out: Array) -> None:
    """Packs four two-bit codes into a byte, the first in the lowest bits; ``out`` is zero."""
    for i in range(len(codes) // 4):
        out[i] = codes[4 * i] | codes[4 * i + 1] << 2 | codes[4 * i + 2] << 4 | codes[4 * i + 3] << 6
    for i in range(len(codes) // 4 * 4, len(codes)):
        out[i // 4] |= codes[i] << (2 * (i % 4))
