"""The content store: whole or invisible, resumable, and what it does on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from protocol.blob_id import blob_id, size_and_chunk_hashes
from protocol.errors import StorageError
from protocol.limits import CHUNK_BYTES
from swarm.blobs.store import ContentStore, NotHereError
from tests.swarm.blobs.stored import content, names_in, on_disk_bytes, start


@pytest.mark.parametrize("size", [0, 1, 3000, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_what_is_put_is_found_by_its_id_and_read_back(tmp_path: Path, size: int) -> None:
    store = ContentStore(tmp_path)
    blob = store.put(content(size))
    assert blob == blob_id(content(size))
    assert store.has(blob)
    assert store.size(blob) == size
    assert store.read(blob) == content(size)
    assert store.path(blob).read_bytes() == content(size)
    assert store.read(blob) == content(size)
    assert not names_in(tmp_path / "partial")


def test_small_blobs_share_one_file_and_large_ones_have_their_own(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    small = [store.put(content(200, seed)) for seed in range(300)]
    large = store.put(content(CHUNK_BYTES + 1))
    assert names_in(tmp_path / "files") == {large.hex()}
    assert sum(path.is_file() for path in tmp_path.rglob("*")) <= 5
    assert all(store.read(blob) == content(200, seed) for seed, blob in enumerate(small))


def test_the_store_says_what_it_takes_on_the_disk(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    for seed in range(300):
        store.put(content(200, seed))
    store.put(content(CHUNK_BYTES + 1))
    assert store.total_bytes() == on_disk_bytes(tmp_path)
    assert store.total_bytes() < CHUNK_BYTES + (1 << 20)


def test_a_path_that_was_handed_over_stays_valid_and_the_blob_is_held_once(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    blob = store.put(content(200))
    path = store.path(blob)
    assert store.path(blob) == path
    assert store.packed_content(blob) is None
    assert path.read_bytes() == store.read(blob) == content(200)


def test_what_was_never_put_is_not_here(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    assert not store.has(bytes(32))
    with pytest.raises(NotHereError):
        store.read(bytes(32))
    with pytest.raises(NotHereError):
        store.size(bytes(32))
    with pytest.raises(NotHereError):
        store.path(bytes(32))
    assert not store.touch(bytes(32))
    assert not names_in(tmp_path)


def test_a_blob_in_chunks_is_invisible_until_the_last_chunk_is_verified(tmp_path: Path) -> None:
    whole = content(2 * CHUNK_BYTES + 100)
    size, hashes = size_and_chunk_hashes(whole)
    store = ContentStore(tmp_path)
    partial = store.resume(blob_id(whole), size, hashes)
    assert partial is not None
    for index in (2, 0):
        assert store.write_chunk(partial, index, whole[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
    assert not store.has(blob_id(whole))
    with pytest.raises(StorageError, match="1 of 3"):
        store.finish(partial)
    assert store.write_chunk(partial, 1, whole[CHUNK_BYTES : 2 * CHUNK_BYTES])
    store.finish(partial)
    assert store.read(blob_id(whole)) == whole
    assert not names_in(tmp_path / "partial")


def test_a_chunk_that_does_not_match_its_hash_is_not_written(tmp_path: Path) -> None:
    whole = content(2 * CHUNK_BYTES)
    store = ContentStore(tmp_path)
    partial = store.resume(blob_id(whole), *size_and_chunk_hashes(whole))
    assert partial is not None
    assert not store.write_chunk(partial, 0, content(CHUNK_BYTES, seed=1))
    assert not store.write_chunk(partial, 0, whole[: CHUNK_BYTES - 1])
    assert partial.missing() == [0, 1]
    partial.close()
    assert not (tmp_path / "partial").exists()


def test_an_interrupted_fetch_resumes_with_what_was_verified(tmp_path: Path) -> None:
    whole = content(3 * CHUNK_BYTES)
    first = ContentStore(tmp_path).resume(blob_id(whole), *size_and_chunk_hashes(whole))
    assert first is not None
    assert first.write(1, whole[CHUNK_BYTES : 2 * CHUNK_BYTES])
    first.close()
    resumed = ContentStore(tmp_path).resume(blob_id(whole), len(whole))
    assert resumed is not None
    assert resumed.missing() == [0, 2]
    resumed.close()


def test_a_chunk_damaged_on_disk_while_interrupted_is_fetched_again(tmp_path: Path) -> None:
    whole = content(3 * CHUNK_BYTES)
    store = ContentStore(tmp_path)
    first = store.resume(blob_id(whole), *size_and_chunk_hashes(whole))
    assert first is not None
    for index in range(3):
        assert first.write(index, whole[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
    first.close()
    part = tmp_path / "partial" / f"{blob_id(whole).hex()}.part"
    damaged = bytearray(part.read_bytes())
    damaged[CHUNK_BYTES + 5] ^= 1
    part.write_bytes(damaged)
    resumed = store.resume(blob_id(whole), len(whole))
    assert resumed is not None
    assert resumed.missing() == [1]
    resumed.close()


@pytest.mark.parametrize("damage", ["truncated record", "hashes of another blob", "content gone"])
def test_an_interrupted_fetch_that_cannot_be_used_is_begun_anew(tmp_path: Path, damage: str) -> None:
    whole = content(3 * CHUNK_BYTES)
    store = ContentStore(tmp_path)
    first = store.resume(blob_id(whole), *size_and_chunk_hashes(whole))
    assert first is not None
    assert first.write(1, whole[CHUNK_BYTES : 2 * CHUNK_BYTES])
    first.close()
    part, record = (tmp_path / "partial" / f"{blob_id(whole).hex()}.{kind}" for kind in ("part", "record"))
    if damage == "truncated record":
        record.write_bytes(record.read_bytes()[:20])
    elif damage == "hashes of another blob":
        raw = bytearray(record.read_bytes())
        raw[12] ^= 1
        record.write_bytes(raw)
    else:
        part.unlink()
    assert store.resume(blob_id(whole), len(whole)) is None
    assert not part.exists()
    assert not record.exists()


def test_a_blob_put_in_parts_is_the_one_put_whole(tmp_path: Path) -> None:
    whole = content(3 * CHUNK_BYTES // 2, 0)
    parts: list[bytes | memoryview] = [whole[:7], memoryview(whole)[7:CHUNK_BYTES], whole[CHUNK_BYTES:]]
    store = ContentStore(tmp_path)
    assert store.put(parts) == blob_id(whole)
    assert store.read(blob_id(whole)) == whole


def test_a_full_disk_frees_what_nobody_fetches_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ContentStore(tmp_path, budget_bytes=1 << 30)
    start(store, content(3 * CHUNK_BYTES, 0), chunks=1)
    with monkeypatch.context() as disk:
        disk.setattr(Path, "open", fill_the_disk)
        with pytest.raises(StorageError, match="free space"):
            store.put(content(2 * CHUNK_BYTES, 1))
    assert not names_in(tmp_path / "partial")
    store.put(content(2 * CHUNK_BYTES, 1))


def test_another_size_under_the_same_id_does_not_drop_an_interrupted_fetch(tmp_path: Path) -> None:
    whole = content(3 * CHUNK_BYTES)
    store = ContentStore(tmp_path, budget_bytes=1 << 30)
    start(store, whole, chunks=2)
    assert store.resume(blob_id(whole), 2 * CHUNK_BYTES) is None
    resumed = store.resume(blob_id(whole), len(whole))
    assert resumed is not None
    assert resumed.missing() == [2]
    resumed.close()


def fill_the_disk(path: Path, *args: object, **kwargs: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_is_a_storage_error_with_a_remedy_and_nothing_is_half_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ContentStore(tmp_path)
    kept = store.put(content(2 * CHUNK_BYTES, 0))
    monkeypatch.setattr(Path, "open", fill_the_disk)
    with pytest.raises(StorageError, match="free space"):
        store.put(content(2 * CHUNK_BYTES, 1))
    monkeypatch.setattr(Path, "write_bytes", fill_the_disk)
    partial = store.resume(blob_id(content(2 * CHUNK_BYTES)), *size_and_chunk_hashes(content(2 * CHUNK_BYTES)))
    assert partial is not None
    with pytest.raises(StorageError, match="free space"):
        store.write_chunk(partial, 0, content(2 * CHUNK_BYTES)[:CHUNK_BYTES])
    monkeypatch.undo()
    assert names_in(tmp_path / "files") == {kept.hex()}
    assert not names_in(tmp_path / "partial")


def test_a_disk_that_fills_during_a_fetch_loses_nothing_that_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(2 * CHUNK_BYTES)
    store = ContentStore(tmp_path)
    partial = store.resume(blob_id(whole), *size_and_chunk_hashes(whole))
    assert partial is not None
    assert store.write_chunk(partial, 0, whole[:CHUNK_BYTES])
    monkeypatch.setattr(os, "pwrite", fill_the_disk)
    with pytest.raises(StorageError, match="free space"):
        store.write_chunk(partial, 1, whole[CHUNK_BYTES:])
    monkeypatch.undo()
    partial.close()
    resumed = store.resume(blob_id(whole), len(whole))
    assert resumed is not None
    assert resumed.missing() == [1]
    resumed.close()


def test_a_directory_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "partial").write_text("a file where the directory should be")
    with pytest.raises(StorageError, match="permissions"):
        ContentStore(tmp_path).put(content(2 * CHUNK_BYTES))
    (tmp_path / "packed.db").mkdir()
    with pytest.raises(StorageError, match="permissions"):
        ContentStore(tmp_path).put(b"content")
