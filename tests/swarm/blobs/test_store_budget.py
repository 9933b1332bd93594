"""What a content store keeps within its budget of disk bytes, what it gives up first, and what expires."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.blob_id import blob_id, size_and_chunk_hashes
from protocol.errors import StorageError
from protocol.limits import CHUNK_BYTES, GROUP_BLOB_BYTES
from swarm.blobs.evictions import EvictableBlob, InterruptedFetch, choose_dropped, choose_evictions
from swarm.blobs.incoming import BlobInbox
from swarm.blobs.partials import PARTIAL_AGE_SECONDS
from swarm.blobs.store import ContentStore
from tests.swarm.blobs.stored import Clock, content, names_in, on_disk_bytes, put_all, start

LARGE = 2 * CHUNK_BYTES  # a blob that is a file


def test_the_least_recently_used_blob_goes_first_when_the_budget_is_full(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=3 * LARGE, grace_seconds=5.0, wall_clock=clock)
    blobs = []
    for seed in range(3):
        blobs.append(store.put(content(LARGE, seed)))
        clock.now_seconds += 10
    assert store.touch(blobs[0])
    clock.now_seconds += 10
    blobs.append(store.put(content(LARGE, 3)))
    assert [store.has(b) for b in blobs] == [True, False, True, True]
    assert store.total_bytes() == 3 * LARGE


def test_a_blob_that_is_pinned_being_read_or_just_used_is_not_evicted(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=3 * LARGE, grace_seconds=5.0, wall_clock=clock)
    pinned, read, fresh = (store.put(content(LARGE, seed)) for seed in range(3))
    store.pin(pinned)
    clock.now_seconds += 10
    store.touch(fresh)
    with store.reading(read):
        clock.now_seconds += 4
        with pytest.raises(StorageError, match=r"swarm\.store_bytes"):
            store.put(content(LARGE, 3))
    assert all(store.has(b) for b in (pinned, read, fresh))
    clock.now_seconds += 10
    store.put(content(LARGE, 3))
    assert store.has(pinned)
    store.unpin(pinned)


def test_a_blob_that_two_want_to_keep_stays_until_both_let_go_of_it(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=LARGE, grace_seconds=5.0, wall_clock=clock)
    kept = store.put(content(LARGE, 0))
    store.pin(kept)
    store.pin(kept)
    clock.now_seconds += 10
    store.unpin(kept)
    assert store.evict(room_bytes=1) == []
    store.unpin(kept)
    assert store.evict(room_bytes=1) == [kept]


def test_another_process_used_a_blob_and_it_outlives_one_that_nobody_used(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=2 * LARGE, grace_seconds=5.0, wall_clock=clock)
    old, new = store.put(content(LARGE, 0)), store.put(content(LARGE, 1))
    clock.now_seconds += 100
    BlobInbox(tmp_path, wall_clock=clock).put(content(LARGE, 0))
    clock.now_seconds += 20
    store.put(content(LARGE, 2))
    assert store.has(old)
    assert not store.has(new)


def test_what_another_process_handed_over_beyond_the_budget_is_evicted(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=5 * LARGE // 2, grace_seconds=5.0, wall_clock=clock)
    inbox = BlobInbox(tmp_path, wall_clock=clock)
    for seed in range(5):
        assert store.touch(inbox.put(content(LARGE, seed))[0])
        clock.now_seconds += 10
    assert len(store.evict()) == 3
    assert store.total_bytes() == 2 * LARGE == on_disk_bytes(tmp_path)


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
    store.tend()
    assert names_in(tmp_path / "partial")
    clock.now_seconds += PARTIAL_AGE_SECONDS + 1.0
    store.tend()
    assert not names_in(tmp_path / "partial")


def test_fetches_that_bring_no_chunk_take_no_room_and_leave_no_file(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=20 * LARGE, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(LARGE, seed) for seed in range(18)], clock)
    clock.now_seconds += 100.0
    for seed in range(100, 150):
        start(store, content(10 * CHUNK_BYTES, seed), chunks=0)
    store.evict()
    assert all(map(store.has, own))
    assert store.total_bytes() == 18 * LARGE
    assert not names_in(tmp_path / "partial")


def test_interrupted_fetches_are_dropped_before_any_whole_blob_and_chunks_never_evict_our_own(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=10 * LARGE, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(LARGE, seed) for seed in range(9)], clock)
    clock.now_seconds += 100.0
    for seed in range(100, 110):
        start(store, content(GROUP_BLOB_BYTES, seed), chunks=1)
    assert all(map(store.has, own))
    assert store.total_bytes() <= 10 * LARGE
    with pytest.raises(StorageError, match=r"swarm\.store_bytes"):
        start(store, content(GROUP_BLOB_BYTES, 200), chunks=3)
    assert all(map(store.has, own))


def test_a_fetch_that_runs_evicts_what_was_fetched_before(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=10 * LARGE, grace_seconds=5.0, wall_clock=clock)
    fetched = [content(LARGE, seed) for seed in range(5)]
    for whole in fetched:
        store.put_fetched(blob_id(whole), whole)
    own = put_all(store, [content(LARGE, seed) for seed in range(10, 14)], clock)
    clock.now_seconds += 100.0
    start(store, content(10 * CHUNK_BYTES, 200), chunks=6)
    assert all(map(store.has, own))
    assert sum(store.has(blob_id(whole)) for whole in fetched) < 5


def test_a_state_that_is_fetched_may_evict_our_own_as_its_chunks_arrive(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=30 * LARGE, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(LARGE, seed) for seed in range(20)], clock)
    clock.now_seconds += 100.0
    start(store, content(40 * CHUNK_BYTES, 200), chunks=21)
    assert not store.has(own[0])
    assert store.total_bytes() <= 30 * LARGE


def test_what_peers_sent_cannot_push_our_own_out_of_half_of_the_store(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=20 * LARGE, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(LARGE, seed) for seed in range(10)], clock)
    for seed in range(100, 200):
        clock.now_seconds += 10.0
        store.put_fetched(blob_id(content(LARGE, seed)), content(LARGE, seed))
    assert all(map(store.has, own))


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
    own = [EvictableBlob(bytes([i]), 100, float(i)) for i in range(10)]
    chosen = choose_evictions(own, [], excess_bytes=150, fetched_bytes=0, budget_bytes=1000)
    assert chosen == [bytes([0]), bytes([1])]
    assert choose_evictions(own, [], excess_bytes=0, fetched_bytes=0, budget_bytes=1000) == []
    assert len(choose_evictions(own, [], excess_bytes=10_000, fetched_bytes=0, budget_bytes=1000)) == 10


def test_choose_evictions_takes_the_least_recently_used_of_both_kinds_until_one_is_too_much() -> None:
    own = [EvictableBlob(b"o%d" % i, 100, 10.0 * i) for i in range(5)]
    fetched = [EvictableBlob(b"f%d" % i, 100, 10.0 * i + 5.0) for i in range(5)]
    chosen = choose_evictions(own, fetched, excess_bytes=400, fetched_bytes=500, budget_bytes=2000)
    assert chosen == [b"o0", b"f0", b"o1", b"f1"]
    chosen = choose_evictions(own, fetched, excess_bytes=400, fetched_bytes=500, budget_bytes=800)
    assert chosen == [b"f0", b"f1", b"o0", b"o1"]


def test_small_blobs_keep_to_the_budget_in_disk_bytes_and_the_latest_stay(tmp_path: Path) -> None:
    clock = Clock()
    budget_bytes = 3 << 20
    store = ContentStore(tmp_path, budget_bytes=budget_bytes, grace_seconds=5.0, wall_clock=clock)
    pinned = store.put(content(5000, 10_000))
    store.pin(pinned)
    blobs = []
    for seed in range(800):
        blobs.append(store.put(content(5000, seed)))
        clock.now_seconds += 1.0
        assert store.total_bytes() <= budget_bytes
    assert on_disk_bytes(tmp_path) == store.total_bytes()
    there = [store.has(blob) for blob in blobs]
    assert there == sorted(there)  # those evicted are the oldest
    assert sum(there) * 5000 > budget_bytes / 2
    assert store.has(pinned)


def test_small_blobs_of_peers_push_out_no_own_ones_of_half_the_store(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=3 << 20, grace_seconds=5.0, wall_clock=clock)
    own = put_all(store, [content(5000, seed) for seed in range(100)], clock)
    for seed in range(1000, 1500):
        clock.now_seconds += 1.0
        store.put_fetched(blob_id(content(5000, seed)), content(5000, seed))
    assert all(map(store.has, own))


def test_room_of_small_blobs_that_left_is_given_back_to_the_disk(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, budget_bytes=1 << 30, expire_seconds=600.0, wall_clock=clock)
    put_all(store, [content(20_000, seed) for seed in range(400)], clock)
    before_bytes = on_disk_bytes(tmp_path)
    clock.now_seconds += 1000.0
    while store.tend():
        pass
    assert before_bytes > 8 << 20
    assert on_disk_bytes(tmp_path) == store.total_bytes() < 3 << 20


@pytest.mark.parametrize("size", [200, 2 * CHUNK_BYTES])
def test_a_blob_that_may_be_a_group_leaves_when_nobody_used_it_for_long_enough(tmp_path: Path, size: int) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, expire_seconds=600.0, wall_clock=clock)
    unused, used = store.put(content(size, 0)), store.put(content(size, 1))
    clock.now_seconds += 400.0
    store.tend()
    assert store.read(used) == content(size, 1)
    clock.now_seconds += 300.0
    store.tend()
    assert not store.has(unused)
    assert store.has(used)


def test_what_is_pinned_or_too_large_for_a_group_does_not_expire(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, expire_seconds=600.0, wall_clock=clock)
    pinned = [store.put(content(size)) for size in (200, 2 * CHUNK_BYTES)]
    weights = store.put(content(GROUP_BLOB_BYTES + 1))
    for blob in pinned:
        store.pin(blob)
    for _ in range(5):
        clock.now_seconds += 500.0
        store.tend()
    assert all(map(store.has, [*pinned, weights]))
    for blob in pinned:
        store.unpin(blob)
    clock.now_seconds += 10_000.0
    store.tend()
    assert not any(map(store.has, pinned))
    assert store.has(weights)


def test_a_clock_that_was_set_back_keeps_nothing_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, expire_seconds=600.0, wall_clock=clock)
    blobs = [store.put(content(200)), store.put(content(2 * CHUNK_BYTES))]
    clock.now_seconds -= 500_000.0
    store.tend()
    clock.now_seconds += 700.0
    store.tend()
    assert not any(map(store.has, blobs))


def test_times_of_use_outlive_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    store = ContentStore(tmp_path, expire_seconds=600.0, wall_clock=clock)
    unused, used = store.put(content(200, 0)), store.put(content(200, 1))
    clock.now_seconds += 500.0
    store.touch(used)
    store.close()
    clock.now_seconds += 200.0
    again = ContentStore(tmp_path, expire_seconds=600.0, wall_clock=clock)
    again.tend()
    assert not again.has(unused)
    assert again.has(used)
