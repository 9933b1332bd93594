"""Requests and answers of ``/starling/blobs/1``: many blobs on one stream, each chunk verifiable by itself.

    request  = frame of [[blob id, first chunk, number of chunks, hashes wanted], …]
    answer   = for each range in order: u8 status ‖ u64 size ‖ [32 bytes for each chunk of the blob] ‖ [the chunks]

Numbers are big-endian. After a status other than HERE the answer to that range ends with the size, which is 0. The list
of chunk hashes is sent where the range asks for it. A chunk has ``limits.CHUNK_BYTES``, the last one of a blob what is
left, so that neither side believes a length that the other sends. A range that reaches beyond the blob is cut to the
chunks that exist. A further request may be sent before earlier ones are answered.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.errors import OversizedError
from protocol.messages import Hash32

BLOB_PROTOCOL: Final = "/starling/blobs/1"
_ANSWER_HEADER: Final = struct.Struct(">BQ")
ANSWER_HEADER_BYTES: Final = _ANSWER_HEADER.size

_ChunkNumber = Annotated[int, Meta(ge=0, le=2**32)]


class BlobStatus(IntEnum):
    """The first byte of the answer to a range. A reader takes a number that it does not know for MISSING."""

    HERE = 0
    MISSING = 1
    BUSY = 2  # too many streams at once: ask again later, or ask another peer


class ChunkRange(Struct, frozen=True, array_like=True):
    """Consecutive chunks of one blob; with ``hashes``, the list of all its chunk hashes before them."""

    blob: Hash32
    first: _ChunkNumber
    count: _ChunkNumber
    hashes: bool


def decode_blob_request(raw: bytes) -> tuple[ChunkRange, ...]:
    """The ranges in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    ranges = wire.decode(raw, tuple[ChunkRange, ...], max_bytes=limits.BLOB_REQUEST_BYTES)
    if len(ranges) > limits.RANGES_PER_REQUEST:
        raise OversizedError(f"a request for {len(ranges)} ranges; at most {limits.RANGES_PER_REQUEST} are allowed")
    return ranges


def encode_answer_header(status: BlobStatus, size_bytes: int) -> bytes:
    """The ``ANSWER_HEADER_BYTES`` with which the answer to a range begins."""
    return _ANSWER_HEADER.pack(status, size_bytes)


def decode_answer_header(raw: bytes | bytearray) -> tuple[int, int]:
    """The status, a ``BlobStatus`` or an unknown number, and the blob's size, from ``ANSWER_HEADER_BYTES``."""
    status, size_bytes = _ANSWER_HEADER.unpack(raw)
    return status, size_bytes
