"""The content store: whole or invisible, resumable, within its budget, safe for two processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path
from random import Random

import pytest

from protocol.blob_id import blob_id, size_and_chunk_hashes
from protocol.errors import StorageError
from protocol.limits import CHUNK_BYTES, GROUP_BLOB_BYTES
from swarm.blobs.evictions import InterruptedFetch, StoredBlob, choose_dropped, choose_evictions
from swarm.blobs.partials import PARTIAL_AGE_SECONDS
from swarm.blobs.store import ContentStore, NotHereError


class Clock:
    def __init__(self) -> None:
        self.now_seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.now_seconds


def content(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


def visible(store: ContentStore) -> set[str]:
    return {p.name for p in store.directory.iterdir() if p.is_file()}


def test_what_is_put_is_found_by_its_id_and_read_back(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    blob = store.put(content(3000))
    assert blob == blob_id(content(3000))
    assert store.has(blob)
    assert store.size(blob) == 3000
    assert store.read(blob) == store.path(blob).read_bytes() == content(3000)
    assert not list((tmp_path / "partial").iterdir())


def test_what_was_never_put_is_not_here(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    assert not store.has(bytes(32))
    with pytest.raises(NotHereError):
        store.read(bytes(32))
    with pytest.raises(NotHereError):
        store.size(bytes(32))


def test_another_process_reads_what_one_puts_without_being_told(tmp_path: Path) -> None:
    learner, swarm = ContentStore(tmp_path), ContentStore(tmp_path, budget_bytes=1 << 20)
    assert swarm.total_bytes() == 0
    blob = learner.put(content(5000))
    assert swarm.read(blob) == content(5000)
    assert swarm.evict() == []
    assert swarm.total_bytes() == 5000


def put_many(directory: Path, seeds: list[int]) -> None:
    store = ContentStore(directory)
    for seed in seeds:
        store.put(content(2000, seed))


@pytest.mark.processes
def test_two_processes_put_the_same_blobs_at_once_and_every_one_is_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=put_many, args=(tmp_path, list(range(50)))) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    store = ContentStore(tmp_path)
    assert all(store.read(blob_id(content(2000, seed))) == content(2000, seed) for seed in range(50))
    assert len(visible(store)) == 50


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
    assert not list((tmp_path / "partial").iterdir())


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


def test_the_least_recently_used_blob_goes_first_when_the_budget_is_full(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=3000, grace_seconds=5.0, wall_clock=clock)
    blobs = []
    for seed in range(3):
        blobs.append(store.put(content(1000, seed)))
        clock.now_seconds += 10
    assert store.touch(blobs[0])
    clock.now_seconds += 10
    blobs.append(store.put(content(1000, 3)))
    assert [store.has(b) for b in blobs] == [True, False, True, True]
    assert store.total_bytes() == 3000


def test_a_blob_that_is_pinned_being_read_or_just_used_is_not_evicted(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=3000, grace_seconds=5.0, wall_clock=clock)
    pinned, read, fresh = (store.put(content(1000, seed)) for seed in range(3))
    store.pin(pinned)
    clock.now_seconds += 10
    store.touch(fresh)
    with store.reading(read):
        clock.now_seconds += 4
        with pytest.raises(StorageError, match=r"swarm\.store_bytes"):
            store.put(content(1000, 3))
    assert all(store.has(b) for b in (pinned, read, fresh))
    clock.now_seconds += 10
    store.put(content(1000, 3))
    assert store.has(pinned)
    store.unpin(pinned)


def test_a_blob_that_two_want_to_keep_stays_until_both_let_go_of_it(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=1000, grace_seconds=5.0, wall_clock=clock)
    kept = store.put(content(1000, 0))
    store.pin(kept)
    store.pin(kept)
    clock.now_seconds += 10
    store.unpin(kept)
    assert store.evict(room_bytes=1) == []
    store.unpin(kept)
    assert store.evict(room_bytes=1) == [kept]


def test_a_blob_put_in_parts_is_the_one_put_whole(tmp_path: Path) -> None:
    whole = content(3 * CHUNK_BYTES // 2, 0)
    parts: list[bytes | memoryview] = [whole[:7], memoryview(whole)[7:CHUNK_BYTES], whole[CHUNK_BYTES:]]
    store = ContentStore(tmp_path)
    assert store.put(parts) == blob_id(whole)
    assert store.read(blob_id(whole)) == whole


def test_another_process_used_a_blob_and_it_outlives_one_that_nobody_used(tmp_path: Path) -> None:
    clock = Clock()
    swarm = ContentStore(tmp_path, budget_bytes=2000, grace_seconds=5.0, wall_clock=clock)
    learner = ContentStore(tmp_path, wall_clock=clock)
    old, new = swarm.put(content(1000, 0)), swarm.put(content(1000, 1))
    clock.now_seconds += 100
    assert learner.read(old) == content(1000, 0)
    clock.now_seconds += 20
    swarm.put(content(1000, 2))
    assert swarm.has(old)
    assert not swarm.has(new)


def test_what_a_learner_added_beyond_the_budget_is_evicted_by_the_swarm_process(tmp_path: Path) -> None:
    clock = Clock()
    swarm = ContentStore(tmp_path, budget_bytes=2500, grace_seconds=5.0, wall_clock=clock)
    learner = ContentStore(tmp_path, wall_clock=clock)
    for seed in range(5):
        learner.put(content(1000, seed))
        clock.now_seconds += 10
    assert len(swarm.evict()) == 3
    assert swarm.total_bytes() == 2000


def test_a_fetch_that_nobody_resumes_for_a_day_is_dropped(tmp_path: Path) -> None:
    clock = Clock()
    clock.now_seconds = tmp_path.stat().st_mtime
    whole = content(2 * CHUNK_BYTES)
    store = ContentStore(tmp_path, budget_bytes=1 << 30, wall_clock=clock)
    partial = store.resume(blob_id(whole), *size_and_chunk_hashes(whole))
    assert partial is not None
    assert store.write_chunk(partial, 0, whole[:CHUNK_BYTES])
    partial.close()
    clock.now_seconds += PARTIAL_AGE_SECONDS / 2
    store.evict()
    assert list((tmp_path / "partial").iterdir())
    clock.now_seconds += PARTIAL_AGE_SECONDS
    store.evict()
    assert not list((tmp_path / "partial").iterdir())


def put_all(store: ContentStore, wholes: list[bytes], clock: Clock) -> list[bytes]:
    blobs = []
    for whole in wholes:
        blobs.append(store.put(whole))
        clock.now_seconds += 1.0
    return blobs


def start(store: ContentStore, whole: bytes, chunks: int) -> None:
    """Fetches the first chunks of a blob, and is interrupted."""
    partial = store.resume(blob_id(whole), *size_and_chunk_hashes(whole))
    assert partial is not None
    for index in range(chunks):
        assert store.write_chunk(partial, index, whole[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
    partial.close()


def test_fetches_that_bring_no_chunk_take_no_room_and_leave_no_file(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=20 * CHUNK_BYTES, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(CHUNK_BYTES, seed) for seed in range(18)], clock)
    clock.now_seconds += 100.0
    for seed in range(100, 150):
        start(store, content(10 * CHUNK_BYTES, seed), chunks=0)
    store.evict()
    assert all(map(store.has, own))
    assert store.total_bytes() == 18 * CHUNK_BYTES
    assert not list((tmp_path / "partial").iterdir())


def test_interrupted_fetches_are_dropped_before_any_whole_blob_and_chunks_never_evict_our_own(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=20 * CHUNK_BYTES, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(CHUNK_BYTES, seed) for seed in range(18)], clock)
    clock.now_seconds += 100.0
    for seed in range(100, 110):
        start(store, content(GROUP_BLOB_BYTES, seed), chunks=1)
    assert all(map(store.has, own))
    assert store.total_bytes() <= 20 * CHUNK_BYTES
    with pytest.raises(StorageError, match=r"swarm\.store_bytes"):
        start(store, content(GROUP_BLOB_BYTES, 200), chunks=3)
    assert all(map(store.has, own))


def test_a_fetch_that_runs_evicts_what_was_fetched_before(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=20 * CHUNK_BYTES, grace_seconds=5.0, wall_clock=clock)
    fetched = [content(CHUNK_BYTES, seed) for seed in range(10)]
    for whole in fetched:
        store.put_fetched(blob_id(whole), whole)
    own = put_all(store, [content(CHUNK_BYTES, seed) for seed in range(10, 18)], clock)
    clock.now_seconds += 100.0
    start(store, content(10 * CHUNK_BYTES, 200), chunks=6)
    assert all(map(store.has, own))
    assert sum(store.has(blob_id(whole)) for whole in fetched) < 10


def test_a_state_that_is_fetched_may_evict_our_own_as_its_chunks_arrive(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=60 * CHUNK_BYTES, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(CHUNK_BYTES, seed) for seed in range(40)], clock)
    clock.now_seconds += 100.0
    start(store, content(40 * CHUNK_BYTES, 200), chunks=21)
    assert not store.has(own[0])
    assert store.total_bytes() <= 60 * CHUNK_BYTES


def test_what_peers_sent_cannot_push_our_own_out_of_half_of_the_store(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=20_000, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(1000, seed) for seed in range(10)], clock)
    for seed in range(100, 200):
        clock.now_seconds += 10.0
        store.put_fetched(blob_id(content(1000, seed)), content(1000, seed))
    assert all(map(store.has, own))


def test_a_full_disk_frees_what_nobody_fetches_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ContentStore(tmp_path, budget_bytes=1 << 30)
    start(store, content(3 * CHUNK_BYTES, 0), chunks=1)
    with monkeypatch.context() as disk:
        disk.setattr(Path, "open", fill_the_disk)
        with pytest.raises(StorageError, match="free space"):
            store.put(content(1000, 1))
    assert not list((tmp_path / "partial").iterdir())
    store.put(content(1000, 1))


def test_another_size_under_the_same_id_does_not_drop_an_interrupted_fetch(tmp_path: Path) -> None:
    whole = content(3 * CHUNK_BYTES)
    store = ContentStore(tmp_path, budget_bytes=1 << 30)
    start(store, whole, chunks=2)
    assert store.resume(blob_id(whole), 2 * CHUNK_BYTES) is None
    resumed = store.resume(blob_id(whole), len(whole))
    assert resumed is not None
    assert resumed.missing() == [2]
    resumed.close()


def test_interrupted_fetches_keep_to_their_shares_and_small_ones_go_first() -> None:
    mib = 1 << 20
    groups = {bytes([i]): InterruptedFetch(GROUP_BLOB_BYTES, 4 * mib, float(i)) for i in range(10)}
    states = {bytes([i]): InterruptedFetch(900 * mib, 200 * mib, float(i)) for i in range(10, 13)}
    both = groups | states
    assert choose_dropped(both, budget_bytes=1024 * mib, excess_bytes=0) == [
        *(bytes([i]) for i in range(6)),  # all but a sixty-fourth
        *(bytes([i]) for i in range(10, 12)),  # all but a quarter
    ]
    assert choose_dropped(both, budget_bytes=1 << 40, excess_bytes=5 * mib) == [bytes([0]), bytes([1])]


def test_choose_evictions_takes_no_more_than_it_must() -> None:
    blobs = {bytes([i]): StoredBlob(100, float(i)) for i in range(10)}
    chosen = choose_evictions(
        blobs, budget_bytes=1000, room_bytes=150, now_seconds=1000.0, grace_seconds=1.0, kept=lambda b: b == bytes([0])
    )
    assert chosen == [bytes([1]), bytes([2])]


def fill_the_disk(path: Path, *args: object, **kwargs: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_is_a_storage_error_with_a_remedy_and_nothing_is_half_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ContentStore(tmp_path)
    kept = store.put(content(1000, 0))
    monkeypatch.setattr(Path, "open", fill_the_disk)
    with pytest.raises(StorageError, match="free space"):
        store.put(content(1000, 1))
    monkeypatch.setattr(Path, "write_bytes", fill_the_disk)
    partial = store.resume(blob_id(content(2 * CHUNK_BYTES)), *size_and_chunk_hashes(content(2 * CHUNK_BYTES)))
    assert partial is not None
    with pytest.raises(StorageError, match="free space"):
        store.write_chunk(partial, 0, content(2 * CHUNK_BYTES)[:CHUNK_BYTES])
    monkeypatch.undo()
    assert visible(store) == {kept.hex()}
    assert not list((tmp_path / "partial").iterdir())


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
        ContentStore(tmp_path).put(b"content")
