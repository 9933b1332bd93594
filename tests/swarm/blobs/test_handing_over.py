"""Blobs that another process of the node hands over, and the directory that an older version made."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from protocol.blob_id import blob_id
from protocol.errors import StorageError
from protocol.limits import CHUNK_BYTES
from swarm.api import Fetched
from swarm.blobs.incoming import UNFINISHED_SECONDS, BlobInbox, clear_flat_folder
from swarm.blobs.store import ContentStore
from tests.hang_guard import HANG_SECONDS
from tests.swarm.blobs.stored import Clock, content, names_in, start

SIZES = [0, 200, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]


@pytest.mark.parametrize("size", SIZES)
def test_what_another_process_hands_over_is_found_at_once(tmp_path: Path, size: int) -> None:
    store = ContentStore(tmp_path)
    assert BlobInbox(tmp_path).put(content(size)) == (blob_id(content(size)), size)
    assert store.has(blob_id(content(size)))
    assert store.read(blob_id(content(size))) == content(size)
    assert not names_in(tmp_path / "incoming")


def put_many(directory: Path, seeds: list[int]) -> None:
    inbox = BlobInbox(directory)
    for seed in seeds:
        inbox.put(content(2000, seed))


@pytest.mark.processes
def test_two_processes_hand_over_the_same_blobs_at_once_and_every_one_is_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=put_many, args=(tmp_path, list(range(50)))) for _ in range(2)]
    for process in both:
        process.start()
    store = ContentStore(tmp_path)
    while any(process.is_alive() for process in both):
        for seed in range(50):
            store.take_over(blob_id(content(2000, seed)))
    for process in both:
        process.join(HANG_SECONDS)
        assert process.exitcode == 0
    assert all(store.take_over(blob_id(content(2000, seed))) for seed in range(50))
    assert all(store.read(blob_id(content(2000, seed))) == content(2000, seed) for seed in range(50))
    assert not names_in(tmp_path / "incoming")


def test_what_nobody_asks_for_is_adopted_after_a_while_and_expires(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, expire_seconds=600.0, wall_clock=clock)
    inbox = BlobInbox(tmp_path)
    blobs = [inbox.put(content(size, 1))[0] for size in (200, 2 * CHUNK_BYTES)]
    clock.now_seconds = (tmp_path / "incoming" / blobs[0].hex()).stat().st_mtime + 100.0
    store.tend()
    assert not names_in(tmp_path / "incoming")
    assert all(map(store.has, blobs))
    clock.now_seconds += 1000.0
    store.tend()
    assert not any(map(store.has, blobs))


def test_a_small_file_with_other_bytes_than_its_name_says_is_not_adopted(tmp_path: Path) -> None:
    blob, _ = BlobInbox(tmp_path).put(content(200))
    (tmp_path / "incoming" / blob.hex()).write_bytes(bytes(200))  # a power failure
    assert not ContentStore(tmp_path).has(blob)
    assert not names_in(tmp_path / "incoming")


def test_what_a_killed_process_began_to_hand_over_is_deleted_after_a_day(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "incoming").mkdir()
    unfinished = tmp_path / "incoming" / f"{bytes(32).hex()}.77-abcd"
    unfinished.write_bytes(b"half")
    store = ContentStore(tmp_path, wall_clock=clock)
    clock.now_seconds = unfinished.stat().st_mtime + UNFINISHED_SECONDS / 2
    store.tend()
    assert unfinished.exists()
    clock.now_seconds += UNFINISHED_SECONDS
    store.tend()
    assert not unfinished.exists()


def test_a_disk_that_is_full_says_so_to_the_process_that_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(path: Path, *args: object, **kwargs: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "open", fill_the_disk)
    with pytest.raises(StorageError, match="free space"):
        BlobInbox(tmp_path).put(content(200))
    assert not names_in(tmp_path / "incoming")


def test_a_fetched_blob_is_read_alike_by_content_and_by_path(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"content")
    for fetched in (Fetched(bytes(32), None, None, b"content"), Fetched(bytes(32), str(path), None)):
        assert fetched.is_here
        assert (fetched.size(), fetched.read()) == (7, b"content")
    empty = Fetched(bytes(32), None, None, b"")
    assert empty.is_here
    assert empty.read() == b""
    missing = Fetched(bytes(32), None, "nobody has it")
    assert not missing.is_here
    with pytest.raises(FileNotFoundError):
        missing.read()


def flat_store(directory: Path, now_seconds: float) -> dict[str, bytes]:
    """Makes what an older version left: every blob a file; returns the ids."""
    directory.mkdir()
    made = {"old": content(200, 0), "young": content(200, 1), "weights": content(3 * CHUNK_BYTES, 2)}
    for name, whole in made.items():
        path = directory / blob_id(whole).hex()
        path.write_bytes(whole)
        used_at_seconds = now_seconds - (10.0 if name == "young" else 5000.0)
        os.utime(path, (used_at_seconds, used_at_seconds))
    return {name: blob_id(whole) for name, whole in made.items()}


def test_blobs_of_an_older_version_are_found_and_those_that_expired_are_deleted(tmp_path: Path) -> None:
    clock, directory = Clock(), tmp_path / "blobs"
    ids = flat_store(directory, clock.now_seconds)
    store = ContentStore(directory, budget_bytes=1 << 30, expire_seconds=600.0, wall_clock=clock)
    assert names_in(directory) == set()
    assert store.read(ids["young"]) == content(200, 1)  # before anything was moved
    clear_flat_folder(directory, before_seconds=clock.now_seconds - 600.0)
    assert names_in(tmp_path) == {"blobs"}
    assert store.read(ids["weights"]) == content(3 * CHUNK_BYTES, 2)
    assert store.path(ids["weights"]).parent == directory / "files"
    assert not store.has(ids["old"])
    assert store.has(ids["young"])


def test_an_upgrade_that_was_interrupted_goes_on_with_the_next_start(tmp_path: Path) -> None:
    clock, directory = Clock(), tmp_path / "blobs"
    ids = flat_store(directory, clock.now_seconds)
    ContentStore(directory, wall_clock=clock)
    store = ContentStore(directory, expire_seconds=600.0, wall_clock=clock)
    new = store.put(content(200, 7))
    clear_flat_folder(directory, before_seconds=clock.now_seconds - 600.0)
    assert names_in(tmp_path) == {"blobs"}
    assert all(map(store.has, [ids["young"], ids["weights"], new]))


def test_a_fetch_that_an_older_version_began_is_continued(tmp_path: Path) -> None:
    clock, directory = Clock(), tmp_path / "blobs"
    flat_store(directory, clock.now_seconds)
    whole = content(3 * CHUNK_BYTES, 9)
    (tmp_path / "elsewhere").mkdir()
    start(ContentStore(tmp_path / "elsewhere"), whole, chunks=2)
    (tmp_path / "elsewhere" / "partial").rename(directory / "partial")
    resumed = ContentStore(directory, wall_clock=clock).resume(blob_id(whole), len(whole))
    assert resumed is not None
    assert resumed.missing() == [2]
    resumed.close()
