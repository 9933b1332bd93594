from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.blob_id import blob_id, chunk_count, chunk_hashes, id_of_chunk_hashes, size_and_chunk_hashes
from protocol.errors import IntegrityError, OversizedError

CHUNK = limits.CHUNK_BYTES


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 1, 3 * CHUNK])
def test_id_is_the_hash_of_size_and_chunk_hashes(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    chunks = [content[start : start + CHUNK] for start in range(0, size, CHUNK)]
    hashes = [hashlib.sha256(chunk).digest() for chunk in chunks]
    expected = hashlib.sha256(b"starling/blob/1\0" + size.to_bytes(8, "big") + b"".join(hashes)).digest()
    assert chunk_count(size) == len(chunks)
    assert chunk_hashes(content) == hashes
    assert blob_id(content) == id_of_chunk_hashes(size, hashes) == expected


@given(st.lists(st.integers(0, 2 * CHUNK), max_size=5))
def test_pieces_of_any_sizes_give_the_id_of_the_whole(sizes: list[int]) -> None:
    pieces = [bytes([index]) * size for index, size in enumerate(sizes)]
    assert size_and_chunk_hashes(iter(pieces)) == size_and_chunk_hashes(b"".join(pieces))
    assert blob_id(iter(pieces)) == blob_id(b"".join(pieces))


def test_content_that_ends_in_zeros_has_an_id_of_its_own() -> None:
    assert len({blob_id(b"a"), blob_id(b"a\0"), blob_id(b"a\0\0"), blob_id(b"")}) == 4


@pytest.mark.parametrize(
    ("size", "hashes"),
    [(1, []), (0, [bytes(32)]), (CHUNK, [bytes(32)] * 2), (CHUNK + 1, [bytes(32)]), (1, [bytes(31)]), (1, [bytes(33)])],
)
def test_hashes_that_cannot_be_of_this_size_are_refused(size: int, hashes: list[bytes]) -> None:
    with pytest.raises(IntegrityError, match="expected"):
        id_of_chunk_hashes(size, hashes)


@pytest.mark.parametrize("size", [-1, limits.BLOB_BYTES + 1])
def test_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(OversizedError, match=str(limits.BLOB_BYTES)):
        id_of_chunk_hashes(size, [])
