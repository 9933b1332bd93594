"""The layout of tensors: their names and shapes in one order, and a digest that is equal where both are equal.

A decoder of tensors has its own layout and takes no count, shape or length from a peer. It computes from the layout the
lengths that a blob must have and refuses any other, before it allocates anything.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from protocol import limits

DIGEST_BYTES: Final = 16
_DOMAIN: Final = b"starling/layout/1\0"


@dataclass(frozen=True)
class TensorLayout:
    """Names and shapes, sorted by name. Every tensor has 1 to ``limits.TENSOR_ELEMENTS`` elements, row-major."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.tensors]
        if names != sorted(set(names)):
            raise ValueError("the tensors of a layout must be sorted by name, each name once")
        if not 1 <= len(names) <= limits.TENSORS:
            raise ValueError(f"{len(names)} tensors; 1 to {limits.TENSORS} are allowed")
        for name, shape in self.tensors:
            if not 1 <= math.prod(shape) <= limits.TENSOR_ELEMENTS:
                raise ValueError(f"{name} has shape {shape}; 1 to {limits.TENSOR_ELEMENTS} elements are allowed")

    @staticmethod
    def of(shapes: Mapping[str, Iterable[int]]) -> TensorLayout:
        """The layout of tensors with these shapes, given in any order."""
        return TensorLayout(tuple((name, tuple(map(int, shapes[name]))) for name in sorted(shapes)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.tensors)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each tensor, in the order of ``tensors``: each 1 to ``limits.TENSOR_ELEMENTS``."""
        return tuple(math.prod(shape) for _, shape in self.tensors)

    @cached_property
    def digest(self) -> bytes:
        """First 16 bytes of SHA-256("starling/layout/1\\0" ‖ MessagePack of [[name, [dimension, …]], …])."""
        return hashlib.sha256(_DOMAIN + msgspec.msgpack.encode(self.tensors)).digest()[:DIGEST_BYTES]
