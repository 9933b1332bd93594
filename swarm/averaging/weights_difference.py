"""How far a partner's weights lie from ours, measured on two files in the content store.

    dense           ‖θ_j − θ_i‖ beside ‖θ_i‖
    compressed      ‖c_j − c_i‖ beside ‖c_i‖: of the updates that the two have learnt

A compressed blob also holds a slice of the weights. It can only be judged beside the receiver's own weights, which are
not here: the receiver bounds how far it may move them (``node.averaging.compressed``).

Guarantees: ``protocol`` decodes the files before they are measured, so that their values are finite, bounded, and of
our layout. The files are mapped; memory stays at a few MiB, or a few times the length of a compressed blob. It runs in
a thread: a billion values take seconds.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from protocol.errors import StorageError
from protocol.weights import compressed_weights, dense_weights
from protocol.weights.compressed_weights import decode_compressed
from protocol.weights.dense_weights import Patterns, dense_bytes, open_dense, widened
from protocol.weights.sparsify import SparseTensor, norm_of, sent_by_both
from protocol.weights.tensor_layout import TensorLayout

_AT_ONCE: Final = 1 << 13  # values: few enough that intermediate results stay in a cache, and BLAS in this thread


@dataclass(frozen=True, slots=True)
class Difference:
    """Euclidean norms of what the encoding sends, over all tensors: θ if it is dense, c if it is compressed."""

    norm: float  # ‖theirs − ours‖
    own_norm: float  # ‖ours‖


@dataclass(frozen=True, slots=True)
class Encoding:
    """A way to hold weights in a blob: how long the blob may be, and how it is measured and checked."""

    max_bytes: Callable[[TensorLayout, int], int]  # (layout, length of our blob)
    difference: Callable[[memoryview, memoryview, TensorLayout], Difference]  # (theirs, ours, layout)
    check: Callable[[memoryview, TensorLayout], object]  # raises for weights that must not be used


def measure_difference(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """Measures the difference of two files.

    Raises ``ProtocolError`` for weights that must not be used, ``StorageError`` if a file cannot be read. If both are
    the same file, it is only checked, in a fifth of the time; both norms are then 0.
    """
    if theirs == ours:
        ENCODINGS[encoding].check(_mapped(ours), layout)
        return Difference(0.0, 0.0)
    return ENCODINGS[encoding].difference(_mapped(theirs), _mapped(ours), layout)


def dense_difference(theirs: memoryview, ours: memoryview, layout: TensorLayout) -> Difference:
    return difference_of(open_dense(theirs, layout), open_dense(ours, layout))


def difference_of(theirs: Sequence[Patterns], ours: Sequence[Patterns]) -> Difference:
    """Measures bf16 patterns, whose tensors are in the same order; allocates almost nothing."""
    squares = own_squares = 0.0
    for its, own in zip(theirs, ours, strict=True):
        for start in range(0, len(own), _AT_ONCE):
            values = widened(own[start : start + _AT_ONCE]).astype(np.float64)
            difference = widened(its[start : start + _AT_ONCE]) - values
            own_squares += float(values @ values)
            squares += float(difference @ difference)
    return Difference(math.sqrt(squares), math.sqrt(own_squares))


def compressed_difference(theirs: memoryview, ours: memoryview, layout: TensorLayout) -> Difference:
    squares = own_squares = 0.0
    pairs = zip(decode_compressed(theirs, layout).update, decode_compressed(ours, layout).update, strict=True)
    for its, own in pairs:
        own_square = norm_of(own) ** 2
        own_squares += own_square
        squares += max(0.0, norm_of(its) ** 2 + own_square - 2.0 * _product(its, own))
    return Difference(math.sqrt(squares), math.sqrt(own_squares))


def _product(one: SparseTensor, other: SparseTensor) -> float:
    """Returns ⟨c_j, c_i⟩ of two updates of one tensor, over the values that both sent."""
    here, there = sent_by_both(one, other)
    return float(one.values[here].astype(np.float64) @ other.values[there].astype(np.float64))


def _mapped(path: Path) -> memoryview:
    """Maps the file; the bytes are unmapped when nothing refers to them, and outlive the file's eviction."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise StorageError(f"cannot read {path} ({error}): it was removed, or the disk is failing") from error


ENCODINGS: Final[Mapping[str, Encoding]] = {
    dense_weights.ENCODING: Encoding(lambda layout, ours: dense_bytes(layout), dense_difference, open_dense),
    # Blobs of one layout differ in the length of their indices: at most 12 bits, 7 or 8 where they lie at random.
    compressed_weights.ENCODING: Encoding(lambda layout, ours: 2 * ours, compressed_difference, decode_compressed),
}
