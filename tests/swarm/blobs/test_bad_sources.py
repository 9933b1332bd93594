"""Peers that claim to hold a blob and do not serve it: they cost a fetch seconds, no disk, and their reputation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from protocol.blob_id import blob_id, id_of_chunk_hashes, size_and_chunk_hashes
from protocol.limits import CHUNK_BYTES
from protocol.streams.blob_messages import BlobStatus, ChunkRange, encode_answer_header
from swarm.api import Wanted
from swarm.blobs.fetch_places import PEERS_AT_MOST, PEERS_AT_ONCE, FetchPlace, may_start, to_displace
from swarm.host import Stream
from swarm.peers.reputation import Conduct
from tests.swarm.blobs.test_blobs import LARGE, Node, World, content, play, serve_instead

GROUP = 8 << 20  # announced by liars


async def hang_up(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
    hashes = made_up_hashes(ranges[0].blob)
    await stream.send(encode_answer_header(BlobStatus.HERE, GROUP) + b"".join(hashes))
    await anyio.sleep(0.5)
    await stream.reset()


def made_up_hashes(seed: bytes) -> list[bytes]:
    return MADE_UP[seed]


MADE_UP: dict[bytes, list[bytes]] = {}


def advertise(number: int) -> bytes:
    """The id of a blob that nobody can have, whose hashes verify."""
    hashes = [bytes([number, index]) * 16 for index in range(GROUP // CHUNK_BYTES)]
    blob = id_of_chunk_hashes(GROUP, hashes)
    MADE_UP[blob] = hashes
    return blob


async def stay_silent(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
    await anyio.sleep_forever()


async def drip(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
    await stream.send(encode_answer_header(BlobStatus.HERE, LARGE) + b"".join(size_and_chunk_hashes(content(LARGE))[1]))
    while True:
        await stream.send(b"x")
        await anyio.sleep(1.0)


async def say_busy(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
    await stream.send(encode_answer_header(BlobStatus.BUSY, 0) * len(ranges))


def test_hashes_that_verify_and_then_a_hang_up_hold_no_disk_and_cost_the_peer_reputation(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, liar):
            here.store.raise_budget(1 << 30)
            own = here.store.put(content(1000))
            alone_bytes = here.store.total_bytes()
            serve_instead(liar, hang_up)
            for number in range(40):
                wanted = Wanted(advertise(number), GROUP, (liar.host.peer_id,))
                (fetched,) = await here.fetch(wanted, deadline_seconds=10.0)
                assert fetched.path is None
            assert here.store.total_bytes() == alone_bytes
            assert here.store.has(own)
            assert here.reports == [(liar.host.peer_id, Conduct.BROKE_OFF)] * 40

    play(story)


@pytest.mark.parametrize("refuse", [stay_silent, drip, say_busy, hang_up])
def test_twenty_peers_that_do_not_serve_delay_a_fetch_from_one_that_does_by_seconds(tmp_path: Path, refuse) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(22) as (here, *liars, honest):
            whole = content(LARGE)
            MADE_UP[blob_id(whole)] = size_and_chunk_hashes(whole)[1]
            honest.store.put(whole)
            for liar in liars:
                serve_instead(liar, refuse)
            (fetched,) = await here.fetch(here.wanted(whole, *liars, honest), deadline_seconds=10.0)
            assert fetched.reason is None
            assert (honest.host.peer_id, Conduct.STALLED) not in here.reports

    play(story)


def test_ten_silent_peers_do_not_delay_the_groups_of_others_in_the_same_fetch(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(14) as (here, *others):
            silent, honest = others[:10], others[10:]
            for liar in silent:
                serve_instead(liar, stay_silent)
            wanted = [here.wanted(content(1000, seed), liar) for seed, liar in enumerate(silent)]
            for seed, node in enumerate(honest, start=100):
                node.store.put(content(1000, seed))
                wanted.append(here.wanted(content(1000, seed), node))
            fetched = await here.fetch(*wanted, deadline_seconds=8.0)
            assert [f.reason is None for f in fetched] == [False] * 10 + [True] * 3
            # The deadline came before the stall: each is reported all the same.
            assert set(here.reports) == {(liar.host.peer_id, Conduct.STALLED) for liar in silent}

    play(story)


def test_a_peer_that_drips_until_the_deadline_is_reported(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, liar):
            serve_instead(liar, drip)
            await here.fetch(here.wanted(content(LARGE), liar), deadline_seconds=9.0)
            assert here.reports == [(liar.host.peer_id, Conduct.STALLED)]

    play(story)


def test_a_fetch_that_waited_for_another_of_the_same_blob_tries_its_own_peers_once_that_failed(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(3) as (here, liar, honest):
            whole = content(LARGE)
            honest.store.put(whole)
            serve_instead(liar, stay_silent)
            outcomes = {}

            async def fetch(source: Node) -> None:
                (fetched,) = await here.fetch(here.wanted(whole, source), deadline_seconds=60.0)
                outcomes[source.host.peer_id] = fetched.reason

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fetch, liar)
                await anyio.sleep(1.0)
                tasks.start_soon(fetch, honest)
            assert outcomes[honest.host.peer_id] is None

    play(story)


def test_another_size_that_is_named_after_the_blob_came_from_others_is_no_failure(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(4) as (here, late, silent, honest):
            whole, other = content(LARGE), content(1000)
            honest.store.put(whole)

            async def answer_late(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
                await anyio.sleep(6.0)
                await stream.send(encode_answer_header(BlobStatus.HERE, 5))

            serve_instead(late, answer_late)
            serve_instead(silent, stay_silent)
            fetched = await here.fetch(here.wanted(whole, late, honest), here.wanted(other, silent))
            assert [f.reason is None for f in fetched] == [True, False]

    play(story)


def test_a_blob_larger_than_the_store_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            here.store._room._budget_bytes = 1 << 30
            (huge,) = await here.fetch(Wanted(bytes(32), 1 << 40, (there.host.peer_id,)))
            assert "swarm.store_bytes" in huge.reason
            assert here.host.traffic().sent_bytes == 0

    play(story)


def test_places_go_to_the_next_peer_when_those_asked_bring_nothing_and_not_before() -> None:
    fresh = {str(n): FetchPlace(0.0) for n in range(PEERS_AT_ONCE)}
    assert not may_start(fresh, 0.5)
    assert may_start(fresh, 2.0)
    quick = {str(n): FetchPlace(0.0, received_bytes=1 << 20) for n in range(PEERS_AT_ONCE)}
    assert not may_start(quick, 2.0)


def test_the_slowest_of_many_gives_its_place_away_after_some_patience() -> None:
    many = {str(n): FetchPlace(0.0, received_bytes=1000 + n) for n in range(PEERS_AT_MOST)}
    assert not may_start(many, 20.0)
    assert to_displace(many, 2.0) is None
    assert to_displace(many, 20.0) == "0"
    del many["0"]
    assert to_displace(many, 20.0) is None


@pytest.mark.parametrize("size", [2000, LARGE], ids=["packed", "file"])
def test_blob_that_a_disk_changed_under_a_running_node_is_deleted_and_no_fault_of_the_node(
    tmp_path: Path, size: int
) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (fetcher, damaged):
            whole = content(size)
            blob = damaged.store.put(whole)
            damage(tmp_path / "1", damaged, whole[:64])
            (outcome,) = await fetcher.fetch(fetcher.wanted(whole, damaged), deadline_seconds=30.0)
            assert not outcome.is_here and not damaged.store.has(blob)
            assert {conduct for _, conduct in fetcher.reports} <= {Conduct.MISSING}
            damaged.store.put(whole)
            (outcome,) = await fetcher.fetch(fetcher.wanted(whole, damaged), deadline_seconds=30.0)
            assert outcome.is_here and fetcher.store.read(blob) == whole

    play(story)


def damage(directory: Path, node: Node, beginning: bytes) -> None:
    """Changes one byte on the disk of the blob that begins so."""
    node.store.close()  # the database writes back what it holds
    (path,) = (each for each in directory.rglob("*") if each.is_file() and beginning in each.read_bytes())
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(beginning) + 5] ^= 1
    path.write_bytes(damaged)
