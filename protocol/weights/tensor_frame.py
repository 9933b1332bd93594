"""The outer form of blobs that carry something for every tensor of a layout.

    magic (4 bytes) ‖ u32 length of the header ‖ header ‖ section of tensor 0 ‖ section of tensor 1 ‖ …

The header is a MessagePack struct that begins with the layout's digest. It has one entry a tensor in columns of
little-endian numbers, from which the lengths of the sections follow. After ``open_header`` and ``cut_sections``, header
and sections cover the blob exactly, and only the header was copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from protocol import limits, wire
from protocol.errors import IntegrityError, MalformedError, OversizedError
from protocol.weights.tensor_layout import TensorLayout

_PREFIX_BYTES: Final = 8  # magic and length of the header

Header = TypeVar("Header", bound=Struct)


def join_frame(magic: bytes, header: Struct, sections: Sequence[bytes]) -> bytes:
    """The blob with this header and these sections."""
    raw = msgspec.msgpack.encode(header)
    return b"".join((magic, len(raw).to_bytes(4, "big"), raw, *sections))


def open_header(blob: memoryview, magic: bytes, type_: type[Header]) -> tuple[Header, memoryview]:
    """The header, checked against its schema, and the bytes after it.

    Raises ``MalformedError`` or ``OversizedError``.
    """
    if bytes(blob[:4]) != magic or len(blob) < _PREFIX_BYTES:
        raise MalformedError(f"begins with {bytes(blob[:4]).hex()}; expected {magic.hex()} and the header's length")
    end = _PREFIX_BYTES + int.from_bytes(blob[4:_PREFIX_BYTES], "big")
    if end - _PREFIX_BYTES > limits.TENSOR_HEADER_BYTES:
        header_bytes = end - _PREFIX_BYTES
        raise OversizedError(f"a header of {header_bytes} bytes; at most {limits.TENSOR_HEADER_BYTES} are allowed")
    if end > len(blob):
        raise MalformedError(f"the header ends at byte {end}, the blob at {len(blob)}")
    raw = bytes(blob[_PREFIX_BYTES:end])
    return wire.decode(raw, type_, max_bytes=limits.TENSOR_HEADER_BYTES), blob[end:]


def check_layout(digest: bytes, layout: TensorLayout) -> None:
    """Raises ``IntegrityError`` unless ``digest``, which a peer sent, is that of ``layout``."""
    if digest != layout.digest:
        raise IntegrityError(f"for tensors of layout {digest.hex()}; ours is {layout.digest.hex()}: another family")


def column(raw: bytes, layout: TensorLayout, dtype: str, what: str, *, per_tensor: int = 1) -> NDArray[np.generic]:
    """The numbers of a column, ``per_tensor`` of them for each tensor. Raises ``MalformedError`` for another length."""
    expected = len(layout.sizes) * per_tensor * np.dtype(dtype).itemsize
    if len(raw) != expected:
        raise MalformedError(f"{what}: {len(raw)} bytes for {len(layout.sizes)} tensors; expected {expected}")
    return np.frombuffer(raw, dtype)


def cut_sections(body: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """The sections of these lengths. Raises ``MalformedError`` unless they cover ``body`` exactly."""
    if sum(lengths) != len(body):
        raise MalformedError(f"sections of {sum(lengths)} bytes in all in a body of {len(body)} bytes")
    sections: list[memoryview] = []
    start = 0
    for length in lengths:
        sections.append(body[start : start + length])
        start += length
    return sections
