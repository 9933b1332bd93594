"""The database of small blobs: what it survives, and what it costs."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.blob_id import blob_id
from protocol.errors import StorageError
from swarm.blobs import packed
from swarm.blobs.packed import PackedBlobs
from swarm.blobs.store import ContentStore
from tests.hang_guard import HANG_SECONDS
from tests.swarm.blobs.stored import Clock, content, names_in, start


def packed_with(path: Path, count: int, size: int = 300) -> list[bytes]:
    """Packs so many blobs, and leaves the files as a process that is killed leaves them."""
    blobs = PackedBlobs(path)
    ids = []
    for seed in range(count):
        ids.append(blob_id(content(size, seed)))
        blobs.put(ids[-1], content(size, seed), fetched=seed % 2 == 0, used_at_seconds=float(seed))
    aside = path.with_name("aside")
    aside.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", aside / f"{path.name}{suffix}")
    blobs.close()
    for file in aside.iterdir():
        shutil.copy(file, path.with_name(file.name))
    return ids


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0.0, 1.0), flipped=st.booleans())
def test_a_log_that_ends_anywhere_leaves_the_first_blobs_whole_and_the_rest_away(
    tmp_path_factory: pytest.TempPathFactory, cut: float, flipped: bool
) -> None:
    path = tmp_path_factory.mktemp("packed") / "packed.db"
    ids = packed_with(path, 100)
    wal = path.with_name("packed.db-wal")
    raw = wal.read_bytes()
    at = min(int(cut * len(raw)), len(raw) - 1)
    wal.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] if flipped else raw[:at])
    blobs = PackedBlobs(path)
    there = [blobs.get(blob) for blob in ids]
    here = sum(found is not None for found in there)
    assert there == [content(300, seed) if seed < here else None for seed in range(100)]
    assert len(blobs) == here
    assert blobs.fetched_bytes == 300 * ((here + 1) // 2)
    for seed, blob in enumerate(ids):
        blobs.put(blob, content(300, seed), fetched=False, used_at_seconds=0.0)
    assert [blobs.get(blob) for blob in ids] == [content(300, seed) for seed in range(100)]
    blobs.close()


def put_until_killed(directory: Path, told: Connection) -> None:
    store = ContentStore(directory, budget_bytes=1 << 30)
    for seed in range(1_000_000):
        told.send_bytes(store.put(content(300 + seed % 5000, seed)))
        if seed % 50 == 49:
            store.tend()


@pytest.mark.processes
def test_a_process_that_is_killed_while_it_writes_leaves_whole_blobs_and_a_store_that_goes_on(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        heard, told = context.Pipe(duplex=False)
        process = context.Process(target=put_until_killed, args=(tmp_path, told))
        process.start()
        told.close()
        ids = [heard.recv_bytes() for _ in range(200)]
        process.kill()
        process.join(HANG_SECONDS)
        store = ContentStore(tmp_path)
        assert all(blob_id(store.read(blob)) == blob for blob in ids)
        assert store.has(store.put(content(100)))
        store.close()


@pytest.mark.parametrize("damage", ["no database", "its first page", "its middle", "cut short", "of another version"])
def test_a_damaged_database_costs_small_blobs_and_no_more(tmp_path: Path, damage: str) -> None:
    store = ContentStore(tmp_path)
    small = [store.put(content(3000, seed)) for seed in range(100)]
    large = store.put(content(300_000))
    store.close()
    path = tmp_path / "packed.db"
    raw = bytearray(path.read_bytes())
    if damage == "no database":
        path.write_bytes(b"this is no database" * 1000)
    elif damage == "its first page":
        raw[100:4096] = bytes(3996)
        path.write_bytes(raw)
    elif damage == "its middle":
        raw[4096:-8192] = os.urandom(len(raw) - 12288)
        path.write_bytes(raw)
    elif damage == "cut short":
        path.write_bytes(raw[: len(raw) // 2])
    else:
        other = sqlite3.connect(path)
        other.execute("PRAGMA user_version = 7")
        other.commit()
        other.close()
    again = ContentStore(tmp_path)
    for seed, blob in enumerate(small):
        assert again.put(content(3000, seed)) == blob
    assert all(again.read(blob) == content(3000, seed) for seed, blob in enumerate(small))
    assert again.read(large) == content(300_000)
    assert again.total_bytes() > 300_000
    again.tend()


def test_a_blob_with_a_wrong_byte_on_the_disk_is_dropped_and_can_be_stored_again(tmp_path: Path) -> None:
    path = tmp_path / "packed.db"
    blobs = PackedBlobs(path)
    blob = blob_id(content(3000))
    blobs.put(blob, content(3000), fetched=True, used_at_seconds=0.0)
    blobs.close()
    raw = path.read_bytes()
    at = raw.index(content(3000)[:16])
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    assert blobs.get(blob) is None
    assert len(blobs) == blobs.fetched_bytes == 0
    blobs.put(blob, content(3000), fetched=True, used_at_seconds=0.0)
    assert blobs.get(blob) == content(3000)


def test_a_full_disk_refuses_small_blobs_keeps_those_that_are_here_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_SETTINGS", (*packed._SETTINGS, "PRAGMA max_page_count = 60"))  # SQLite says: full
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=1 << 30, expire_seconds=600.0, wall_clock=clock)
    start(store, content(1 << 20), chunks=1)
    kept = []
    with pytest.raises(StorageError, match="free space"):
        for seed in range(1000):
            kept.append(store.put(content(3000, seed)))
    assert len(kept) > 20
    assert not names_in(tmp_path / "partial")  # what nobody waits for gave way
    assert all(store.read(blob) == content(3000, seed) for seed, blob in enumerate(kept))
    clock.now_seconds += 1000.0
    store.tend()
    assert not any(map(store.has, kept))
    assert store.read(store.put(content(3000, 5000))) == content(3000, 5000)


def test_a_second_owner_is_told_to_go_and_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "OPEN_SECONDS", 0.0)
    owner, other = ContentStore(tmp_path), ContentStore(tmp_path)
    blob = owner.put(content(300))
    assert not other.has(blob)
    with pytest.raises(StorageError, match="other process"):
        other.put(content(300, 1))
    owner.close()
    assert other.read(blob) == content(300)


def test_errors_of_sqlite_are_those_of_the_operating_system(tmp_path: Path) -> None:
    (tmp_path / "packed.db").mkdir()
    with pytest.raises(OSError) as caught:
        PackedBlobs(tmp_path / "packed.db").put(bytes(32), b"", fetched=False, used_at_seconds=0.0)
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize(("before", "after", "stays"), [("one", "one", True), ("one", "other", False), ("", "", False)])
def test_a_database_that_was_open_when_the_machine_went_down_is_begun_anew(
    tmp_path: Path, before: str, after: str, stays: bool
) -> None:
    path = tmp_path / "packed.db"
    killed = PackedBlobs(path, boot=lambda: before)
    blob = blob_id(b"content")
    killed.put(blob, b"content", fetched=False, used_at_seconds=0.0)
    shutil.copytree(tmp_path, tmp_path / "left")
    left = PackedBlobs(tmp_path / "left" / "packed.db", boot=lambda: after)
    assert left.has(blob) is stays
    left.put(blob, b"content", fetched=False, used_at_seconds=0.0)
    assert left.get(blob) == b"content"
    killed.close()
    closed = PackedBlobs(path, boot=lambda: after)
    assert closed.has(blob)  # nothing was lost: it was closed


def test_a_blob_that_is_put_twice_is_counted_once_and_removing_what_is_not_here_changes_nothing(tmp_path: Path) -> None:
    blobs = PackedBlobs(tmp_path / "packed.db")
    blob = blob_id(b"twice")
    for _ in range(2):
        blobs.put(blob, b"twice", fetched=True, used_at_seconds=1.0)
    assert (len(blobs), blobs.fetched_bytes) == (1, 5)
    blobs.remove([bytes(32)])
    blobs.remove([blob, blob])
    assert (len(blobs), blobs.fetched_bytes) == (0, 0)
