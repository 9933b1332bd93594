"""Columns of small integers as byte planes, and the zstd frame that holds them.

``decompress_columns`` bounds its memory by the caller's limit and ``limits.GROUP_WINDOW_BYTES``, whatever size the
frame claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import MalformedError, OversizedError

# The best compromise of bytes and time: scripts/bench/wire.py shows a group at a lower and a higher level too.
_ZSTD_LEVEL: Final = 6
_INPUT_SLICE_BYTES: Final = 256  # of compressed input at a time: at zstd's densest that gives 64 blocks of 128 KiB


def to_planes(numbers: NDArray[np.int64], width: int) -> bytes:
    """``width`` planes with one byte of each number, the least significant first: similar bytes lie together."""
    return numbers.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width].T.tobytes()


def from_planes(planes: bytes, count: int, *, widths: Sequence[int]) -> NDArray[np.int64]:
    """The ``count`` numbers in these planes. Raises ``MalformedError`` unless their width is one of ``widths``."""
    width = len(planes) // count if count else 0
    if len(planes) != width * count or (count and width not in widths):
        raise MalformedError(f"a column of {len(planes)} bytes for {count} tokens; {widths} bytes a token are known")
    numbers = np.zeros(count, dtype=np.int64)
    for plane in range(width):
        column = np.frombuffer(planes, dtype=np.uint8, count=count, offset=plane * count)
        numbers |= column.astype(np.int64) << (8 * plane)
    return numbers


def compress_columns(content: bytes, block_ends: Sequence[int]) -> bytes:
    """One zstd frame that states its size, with a block that ends at each of ``block_ends`` (rising).

    Any zstd reads it. A block has its own Huffman tables, so that columns of different bytes compress better in blocks
    of their own.
    """
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj(size=len(content))
    pieces: list[bytes] = []
    start = 0
    for end in block_ends:
        pieces.append(compressor.compress(content[start:end]))
        pieces.append(compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        start = end
    return b"".join((*pieces, compressor.compress(content[start:]), compressor.flush()))


def decompress_columns(frame: bytes | memoryview, *, max_bytes: int) -> bytes:
    """The content of exactly one zstd frame, without trust in the size that it claims.

    The input is read in small slices, so that at most 8 MiB are made beyond ``max_bytes``. Raises ``OversizedError`` or
    ``MalformedError``.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=limits.GROUP_WINDOW_BYTES).decompressobj()
    pieces: list[bytes] = []
    size = 0
    position = 0
    while position < len(frame) and not decompressor.eof:
        part = frame[position : position + _INPUT_SLICE_BYTES]
        try:
            pieces.append(decompressor.decompress(part))
        except zstandard.ZstdError as error:
            raise MalformedError(f"not a zstd frame: {error}") from error
        position += len(part) - len(decompressor.unused_data)
        size += len(pieces[-1])
        if size > max_bytes:
            raise OversizedError(f"more than {max_bytes} bytes, decompressed")
    if not decompressor.eof or position < len(frame):
        raise MalformedError("the zstd frame is cut short, or bytes follow it")
    return b"".join(pieces)
