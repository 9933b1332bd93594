"""Blobs are named by the hash of their content, in a form that lets each chunk be verified by itself.

    id = SHA-256("starling/blob/1\\0" ‖ u64 size ‖ SHA-256(chunk_0) ‖ SHA-256(chunk_1) ‖ …)

over chunks of ``limits.CHUNK_BYTES`` (the last may be shorter; an empty blob has none), the size in big-endian order.
A receiver checks the list of chunk hashes against the id, and then each chunk against its hash, so that it need not
trust the peers that send them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from protocol import limits
from protocol.errors import IntegrityError, OversizedError

HASH_BYTES: Final = 32
_DOMAIN: Final = b"starling/blob/1\0"


def blob_id(content: bytes | Iterable[bytes | memoryview]) -> bytes:
    """The id (32 bytes) of a blob, given whole or in pieces of any sizes. Pieces are read once, none is kept."""
    return id_of_chunk_hashes(*size_and_chunk_hashes(content))


def chunk_hashes(content: bytes | Iterable[bytes | memoryview]) -> list[bytes]:
    """The SHA-256 of each chunk, in order."""
    return size_and_chunk_hashes(content)[1]


def size_and_chunk_hashes(content: bytes | Iterable[bytes | memoryview]) -> tuple[int, list[bytes]]:
    """The size in bytes and the chunk hashes of a blob, in one pass."""
    size = 0
    hashes: list[bytes] = []
    chunk = hashlib.sha256()
    for piece in [content] if isinstance(content, bytes) else content:
        view = memoryview(piece)
        while view:
            part = view[: limits.CHUNK_BYTES - size % limits.CHUNK_BYTES]
            chunk.update(part)
            size += len(part)
            view = view[len(part) :]
            if size % limits.CHUNK_BYTES == 0:
                hashes.append(chunk.digest())
                chunk = hashlib.sha256()
    if size % limits.CHUNK_BYTES:
        hashes.append(chunk.digest())
    return size, hashes


def chunk_count(size_bytes: int) -> int:
    """The number of chunks of a blob of this size."""
    return -(-size_bytes // limits.CHUNK_BYTES)


def id_of_chunk_hashes(size_bytes: int, hashes: Sequence[bytes]) -> bytes:
    """The id (32 bytes) of the blob of this size with these chunk hashes.

    Raises ``OversizedError`` for a size outside 0 to ``limits.BLOB_BYTES``, ``IntegrityError`` for hashes that cannot
    be those of a blob of this size. A receiver compares the result with the id that it asked for.
    """
    if not 0 <= size_bytes <= limits.BLOB_BYTES:
        raise OversizedError(f"a blob of {size_bytes} bytes; at most {limits.BLOB_BYTES} are allowed")
    if len(hashes) != chunk_count(size_bytes) or any(len(digest) != HASH_BYTES for digest in hashes):
        raise IntegrityError(
            f"{len(hashes)} chunk hashes for a blob of {size_bytes} bytes; "
            f"expected {chunk_count(size_bytes)} of {HASH_BYTES} bytes each"
        )
    return hashlib.sha256(b"".join((_DOMAIN, size_bytes.to_bytes(8, "big"), *hashes))).digest()
