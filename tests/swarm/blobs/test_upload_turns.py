"""Who is served when many want to be: strangers who hold places without using them give way, whatever their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from trio.testing import MockClock

from protocol.blob_id import blob_id
from protocol.errors import UnreachableError
from protocol.streams.blob_messages import BLOB_PROTOCOL, ChunkRange
from protocol.streams.framing import framed_message
from swarm.blobs.upload_turns import (
    IDLE_SECONDS,
    MARGIN_BYTES,
    REQUESTS,
    SLOW_SECONDS,
    STREAMS,
    STREAMS_PER_PEER,
    TURNS,
    Upload,
    UploadTurns,
)
from tests.swarm.blobs.test_blobs import LARGE, Node, World, content, play

PART = 65_536


def upload(peer: str, *, network: str = "", standing: float = 0.5, now_seconds: float = 0.0) -> Upload:
    return Upload(peer, network or f"network of {peer}", standing, anyio.CancelScope(), now_seconds)


def full(turns: UploadTurns, *, standing: float = 0.5, network: str = "") -> list[Upload]:
    """As many requests are under way as may be."""
    held = [upload(f"sybil {n}", standing=standing, network=network) for n in range(REQUESTS)]
    assert all(asks(turns, each, 0.0) for each in held)
    return held


def asks(turns: UploadTurns, newcomer: Upload, now_seconds: float) -> bool:
    assert turns.open(newcomer, now_seconds)
    return turns.begin(newcomer, now_seconds)


def decide(story: Callable[[], Awaitable[None]]) -> None:
    anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


def test_streams_without_a_request_keep_nobody_out() -> None:
    async def story() -> None:
        turns = UploadTurns()
        for n in range(2 * STREAMS):
            assert turns.open(upload(f"sybil {n // STREAMS_PER_PEER}"), 0.0)
        assert turns.pushed_out == STREAMS

    decide(story)


def test_one_peer_has_a_few_streams_and_pushes_out_only_itself() -> None:
    async def story() -> None:
        turns = UploadTurns()
        greedy = [upload("greedy", now_seconds=float(n)) for n in range(STREAMS_PER_PEER + 1)]
        assert all(turns.open(each, each.moved_at_seconds) for each in greedy)
        assert [each.scope.cancel_called for each in greedy] == [True] + [False] * STREAMS_PER_PEER
        assert all(turns.begin(each, 10.0) for each in greedy[1:])
        assert not turns.open(upload("greedy"), 10.0)

    decide(story)


def test_a_newcomer_finds_no_room_among_equals_and_pushes_out_who_was_served_more_or_does_not_read() -> None:
    async def story() -> None:
        turns = UploadTurns()
        held = full(turns)
        assert not asks(turns, upload("newcomer"), 0.0)
        await turns.turn(held[3])
        turns.end_turn(held[3], 2 * MARGIN_BYTES, 0.0)
        assert asks(turns, upload("newcomer"), 0.0)
        assert held[3].scope.cancel_called
        await turns.turn(held[5])
        assert not asks(turns, upload("other"), 0.5 * SLOW_SECONDS)
        assert asks(turns, upload("other"), 1.5 * SLOW_SECONDS)
        assert held[5].scope.cancel_called

    decide(story)


def test_a_peer_with_a_better_reputation_is_served_at_once_and_not_pushed_out_by_strangers() -> None:
    async def story() -> None:
        turns = UploadTurns()
        full(turns)
        friend = upload("friend", standing=0.6)
        assert asks(turns, friend, 0.0)
        await turns.turn(friend)
        turns.end_turn(friend, 100 * MARGIN_BYTES, 0.0)
        for n in range(3 * REQUESTS):
            asks(turns, upload(f"newcomer {n}"), 100.0)
        assert not friend.scope.cancel_called

    decide(story)


async def parts_served(wanting: dict[Upload, int], parts: int) -> Counter[str]:
    """Sends that many parts, one at a time, to uploads that want so many each; returns the parts by network."""
    turns, served = UploadTurns(turns=1), Counter[str]()

    async def serve(upload: Upload, wanted: int) -> None:
        for _ in range(wanted):
            await turns.turn(upload)
            await anyio.sleep(0.01)
            served[upload.network] += 1
            turns.end_turn(upload, PART, anyio.current_time())

    with anyio.move_on_after(0.01 * parts):
        async with anyio.create_task_group() as tasks:
            for each, wanted in wanting.items():
                assert turns.open(each, 0.0)
                tasks.start_soon(serve, each, wanted)
    return served


def test_who_asks_for_less_than_an_equal_share_gets_it_and_the_others_share_the_rest() -> None:
    async def story() -> None:
        sybils = {upload(f"sybil {n}", network=f"198.51.100.{n}"): 10_000 for n in range(50)}
        served = await parts_served({**sybils, upload("honest", network="192.0.2.1"): 3}, 500)
        assert served["192.0.2.1"] == 3
        shares = [served[f"198.51.100.{n}"] for n in range(50)]
        assert max(shares) - min(shares) <= 1

    decide(story)


def test_many_identities_behind_one_address_share_what_one_address_gets() -> None:
    async def story() -> None:
        sybils = {upload(f"sybil {n}", network="198.51.100.1"): 10_000 for n in range(50)}
        others = {upload(f"other {n}", network=f"192.0.2.{n}"): 10_000 for n in range(4)}
        served = await parts_served({**sybils, **others}, 500)
        assert served["198.51.100.1"] <= 101

    decide(story)


def test_peers_that_take_nothing_hold_no_turn() -> None:
    async def story() -> None:
        turns = UploadTurns()
        for each in full(turns)[:TURNS]:
            await turns.turn(each)
        honest = upload("honest", standing=0.6)
        assert asks(turns, honest, anyio.current_time())
        with anyio.fail_after(2 * SLOW_SECONDS):
            await turns.turn(honest)

    decide(story)


def test_sixty_four_streams_with_a_request_a_minute_do_not_keep_an_honest_peer_from_its_blob(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(18) as (server, honest, *sybils):
            server.store.put(content(LARGE))
            async with anyio.create_task_group() as tasks:

                async def hold(sybil: Node) -> None:
                    await sybil.host.connect(server.host.addresses()[0], deadline_seconds=5.0)
                    streams = [
                        await sybil.host.open_stream(server.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0)
                        for _ in range(4)
                    ]
                    for stream in streams:
                        await stream.send(framed_message([ChunkRange(bytes(32), 0, 1, False)]))
                    await anyio.sleep_forever()

                for sybil in sybils:
                    tasks.start_soon(hold, sybil)
                await anyio.sleep(1.0)
                (fetched,) = await honest.fetch(honest.wanted(content(LARGE), server), deadline_seconds=5.0)
                assert fetched.reason is None
                tasks.cancel_scope.cancel()

    play(story)


def test_readers_that_take_a_trickle_give_way_to_one_that_reads(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(40) as (server, honest, *sybils):
            server.store.put(content(LARGE))
            async with anyio.create_task_group() as tasks:

                async def trickle(sybil: Node) -> None:
                    await sybil.host.connect(server.host.addresses()[0], deadline_seconds=5.0)
                    while True:
                        stream = await sybil.host.open_stream(server.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0)
                        with suppress(UnreachableError):
                            await stream.send(framed_message([ChunkRange(blob_id(content(LARGE)), 0, 100, False)] * 9))
                            while True:
                                await stream.receive(32_768)
                                await anyio.sleep(2.0)

                for sybil in sybils:
                    for _ in range(STREAMS_PER_PEER):
                        tasks.start_soon(trickle, sybil)
                await anyio.sleep(5.0)
                (fetched,) = await honest.fetch(honest.wanted(content(LARGE), server), deadline_seconds=5.0)
                assert fetched.reason is None
                tasks.cancel_scope.cancel()

    play(story)


def test_a_stream_without_a_request_is_closed_after_some_seconds(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (server, idle):
            await idle.host.connect(server.host.addresses()[0], deadline_seconds=5.0)
            stream = await idle.host.open_stream(server.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0)
            with anyio.fail_after(IDLE_SECONDS + 1.0), pytest.raises(UnreachableError):
                await stream.receive(1)
            assert server.reports == []

    play(story)
