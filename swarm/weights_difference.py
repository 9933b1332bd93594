"""How far a partner's weights lie from ours, read from two files in the content store.

Guarantees: what is measured was decoded by ``protocol`` first, so its values are finite and bounded, and of our layout;
the files are mapped, never read whole, so memory stays at a few MiB however large they are. Runs in a thread: a billion
values take seconds.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from protocol.dense_weights import ENCODING, dense_bytes, open_dense, widened
from protocol.errors import StorageError
from protocol.tensor_layout import TensorLayout

_AT_ONCE: Final = 1 << 13  # values: what is made of them stays in a cache, and BLAS in this thread


@dataclass(frozen=True, slots=True)
class Difference:
    norm: float  # ‖theirs − ours‖
    own_norm: float  # ‖ours‖


@dataclass(frozen=True, slots=True)
class Encoding:
    """A way to hold weights in a blob: how long one may be, and how it is measured."""

    most_bytes: Callable[[TensorLayout], int]
    difference: Callable[[memoryview, memoryview, TensorLayout], Difference]  # (theirs, ours, layout)
    check: Callable[[memoryview, TensorLayout], object]  # raises for weights that must not be used


def measure(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """Raises ``ProtocolError`` for weights that must not be used, ``StorageError`` if a file cannot be read.

    A file and itself are checked, in a fifth of the time, and not measured: both norms are given as 0.
    """
    if theirs == ours:
        ENCODINGS[encoding].check(_mapped(ours), layout)
        return Difference(0.0, 0.0)
    return ENCODINGS[encoding].difference(_mapped(theirs), _mapped(ours), layout)


def dense_difference(theirs: memoryview, ours: memoryview, layout: TensorLayout) -> Difference:
    squares = own_squares = 0.0
    for its, own in zip(open_dense(theirs, layout), open_dense(ours, layout), strict=True):
        for start in range(0, len(own), _AT_ONCE):
            values = widened(own[start : start + _AT_ONCE]).astype(np.float64)
            difference = widened(its[start : start + _AT_ONCE]) - values
            own_squares += float(values @ values)
            squares += float(difference @ difference)
    return Difference(math.sqrt(squares), math.sqrt(own_squares))


def _mapped(path: Path) -> memoryview:
    """The file's bytes, unmapped when nothing refers to them; they outlive the file's eviction."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise StorageError(f"cannot read {path} ({error}): it was removed, or the disk is failing") from error


ENCODINGS: Final[Mapping[str, Encoding]] = {ENCODING: Encoding(dense_bytes, dense_difference, open_dense)}
