"""The blob form of whole weights: every value of every tensor of a layout in bf16, bit for bit.

``b"SLW1"``, a header of one size, and for each tensor its values as 16-bit patterns (``docs/protocol.md`` gives every
byte). The header is padded so that the values begin at byte 64: a blob that is mapped into memory is read without a
copy. The length of a blob follows from the layout alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import MalformedError
from protocol.messages import Hash16
from protocol.weights.tensor_frame import check_layout, cut_sections, join_frame, open_header
from protocol.weights.tensor_layout import TensorLayout

ENCODING: Final = "dense-bf16"  # its name in offers
WEIGHTS_MAGIC: Final = b"SLW1"
VALUES_BEGIN: Final = 64  # bytes
_PADDING: Final = bytes(35)
_MAGNITUDE_BITS: Final = np.uint16(np.float32(limits.UPDATE_MAGNITUDE).view(np.uint32) >> 16)
_AT_ONCE: Final = 1 << 20  # values in one check: bounds what the check of a gigabyte allocates

Patterns = NDArray[np.uint16]


class _Header(Struct, frozen=True, array_like=True):
    layout: Hash16
    padding: Annotated[bytes, Meta(min_length=len(_PADDING), max_length=len(_PADDING))]  # zero


def dense_bytes(layout: TensorLayout) -> int:
    """The length of every blob of this layout."""
    return VALUES_BEGIN + 2 * sum(layout.sizes)


def encode_dense(layout: TensorLayout, tensors: Sequence[Patterns]) -> bytes:
    """The blob of bf16 patterns, in the layout's order; each array has the tensor's elements, whatever its shape."""
    return b"".join(dense_parts(layout, tensors))


def dense_parts(layout: TensorLayout, tensors: Sequence[Patterns]) -> list[bytes | memoryview]:
    """Returns the blob of ``encode_dense`` in parts, to be written one after the other: the header, then each tensor.

    For blobs that are too large to be in memory twice: parts of contiguous arrays share the arrays' memory, so nothing
    may write to these before the parts are used. Raises ``ValueError`` unless ``tensors`` are the layout's, by number
    of elements, as uint16.
    """
    if [tensor.size for tensor in tensors] != list(layout.sizes) or any(t.dtype != np.uint16 for t in tensors):
        raise ValueError("the tensors must be those of the layout, as 16-bit patterns")
    header = join_frame(WEIGHTS_MAGIC, _Header(layout.digest, _PADDING), [])
    values = [np.ascontiguousarray(tensor, "<u2").reshape(-1).view(np.uint8) for tensor in tensors]
    return [header, *(tensor.data for tensor in values)]


def open_dense(blob: bytes | memoryview, layout: TensorLayout) -> list[Patterns]:
    """The patterns of every tensor, flat and in the layout's order, as read-only views of ``blob``.

    All values are finite and at most ``limits.UPDATE_MAGNITUDE``. Raises ``MalformedError`` or ``OversizedError``;
    ``IntegrityError`` if the weights are of another layout.
    """
    view = memoryview(blob).toreadonly()
    header, body = open_header(view, WEIGHTS_MAGIC, _Header)
    check_layout(header.layout, layout)
    if bytes(view[: len(view) - len(body)]) != join_frame(WEIGHTS_MAGIC, _Header(header.layout, _PADDING), []):
        raise MalformedError("a header that holds more than the layout and zeros")
    sections = cut_sections(body, [2 * size for size in layout.sizes])
    tensors = [np.frombuffer(section, "<u2") for section in sections]
    check_values(layout, tensors)
    return tensors


def check_values(layout: TensorLayout, tensors: Sequence[Patterns]) -> None:
    """Raises ``MalformedError`` unless all values are finite and at most ``limits.UPDATE_MAGNITUDE``."""
    for name, tensor in zip(layout.names, tensors, strict=True):
        _check_values(name, tensor)


def widened(patterns: Patterns) -> NDArray[np.float32]:
    """The values that bf16 patterns stand for."""
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def _check_values(name: str, patterns: Patterns) -> None:
    for start in range(0, len(patterns), _AT_ONCE):
        magnitudes = patterns[start : start + _AT_ONCE] & np.uint16(0x7FFF)  # ordered as their values, NaN above all
        if magnitudes.max() > _MAGNITUDE_BITS:
            raise MalformedError(f"{name} has a value that is not finite or above {limits.UPDATE_MAGNITUDE:g}")
