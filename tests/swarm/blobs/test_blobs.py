"""Blob exchange on the simulated network: resumes, tries other peers, verifies all, survives hostile requests."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import anyio
import msgspec
import pytest
from trio.testing import MockClock

from protocol.blob_id import blob_id, size_and_chunk_hashes
from protocol.errors import StorageError, TransportError, UnreachableError
from protocol.limits import CHUNK_BYTES
from protocol.streams.blob_messages import (
    ANSWER_HEADER_BYTES,
    BLOB_PROTOCOL,
    BlobStatus,
    ChunkRange,
    decode_answer_header,
    encode_answer_header,
)
from protocol.streams.framing import framed_message
from swarm.api import Fetched, Wanted
from swarm.blobs import blob_server as blobs_module
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.store import ContentStore
from swarm.blobs.upload_turns import STREAMS_PER_PEER
from swarm.host import Stream
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.reputation import Conduct
from swarm.stream_reader import StreamReader, send_within

LARGE = 10 * CHUNK_BYTES + 1234


def content(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


@dataclass
class Node:
    host: SimulatedHost
    store: ContentStore
    server: BlobServer
    fetcher: Fetcher
    reports: list[tuple[str, Conduct]] = field(default_factory=list)
    given: list[tuple[str, bytes]] = field(default_factory=list)

    def wanted(self, whole: bytes, *sources: Node) -> Wanted:
        return Wanted(blob_id(whole), len(whole), tuple(s.host.peer_id for s in sources))

    async def fetch(self, *wanted: Wanted, deadline_seconds: float = 300.0) -> list[Fetched]:
        return await self.fetcher.fetch(wanted, deadline_seconds=deadline_seconds)


class World:
    """A simulated network whose nodes all know each other's addresses."""

    def __init__(self, directory: Path, *, delay_seconds: float = 0.05) -> None:
        self.network = SimulatedNetwork(seed=1, delay_seconds=(delay_seconds, delay_seconds))
        self._directory = directory
        self._nodes: list[Node] = []

    @asynccontextmanager
    async def nodes(self, count: int, *, upload_bytes_per_second: float = 0.0):
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                await tasks.start(self._live, upload_bytes_per_second)
            yield self._nodes
            tasks.cancel_scope.cancel()

    async def _live(self, upload: float, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        number = len(self._nodes)
        host = self.network.host(f"node {number}")
        await self.live(host, self._directory / str(number), upload, task_status=task_status)

    async def live(
        self, host: SimulatedHost, directory: Path, upload: float = 0.0, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        store = ContentStore(directory)
        reports: list[tuple[str, Conduct]] = []

        def report(peer: str, conduct: Conduct, detail: str) -> None:
            reports.append((peer, conduct))

        async def reach(peer: str, deadline_seconds: float) -> None:
            address = next((n.host.addresses()[0] for n in self._nodes if n.host.peer_id == peer), None)
            if address is None:
                raise UnreachableError(f"no address of {peer} is known")
            await host.connect(address, deadline_seconds=deadline_seconds)

        given: list[tuple[str, bytes]] = []
        server = BlobServer(
            host,
            store,
            upload_bytes_per_second=upload,
            report=report,
            on_sent=lambda peer, blob: given.append((peer, blob)),
        )
        fetcher = Fetcher(host, store, reach=reach, report=report)
        self._nodes.append(Node(host, store, server, fetcher, reports, given))
        async with host.run():
            task_status.started()
            await anyio.sleep_forever()


def play(story: Callable[[], Awaitable[None]]) -> None:
    anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


def serve_instead(node: Node, answer: Callable[[Stream, Sequence[ChunkRange]], Awaitable[None]]) -> None:
    """Replaces a node's server by one that reads honest requests and answers as the test says."""

    async def serve(stream: Stream) -> None:
        reader = StreamReader(stream, stall_seconds=60.0)
        while not await reader.at_end():
            (length,) = struct.unpack(">I", await reader.exactly(4))
            await answer(stream, msgspec.msgpack.decode(await reader.exactly(length), type=list[ChunkRange]))

    node.host.handle(BLOB_PROTOCOL, serve)


@pytest.mark.parametrize("size", [1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, LARGE])
def test_a_blob_of_any_size_arrives_whole(tmp_path: Path, size: int) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            there.store.put(content(size))
            (fetched,) = await here.fetch(here.wanted(content(size), there))
            assert fetched.reason is None
            assert here.store.read(blob_id(content(size))) == content(size)
            assert there.server.refused == {}
            assert there.given == [(here.host.peer_id, blob_id(content(size)))]  # called once, for any number of ranges

    play(story)


def test_what_is_missing_or_sent_in_part_was_not_given(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            whole = content(3 * CHUNK_BYTES)
            there.store.put(whole)
            await here.fetch(here.wanted(content(10), there))
            stream = await here.host.open_stream(there.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0)
            await stream.send(framed_message([ChunkRange(blob_id(whole), 0, 2, False)]))
            reader = StreamReader(stream, stall_seconds=5.0)
            await reader.exactly(ANSWER_HEADER_BYTES + 2 * CHUNK_BYTES)
            assert there.given == []
            await stream.send(framed_message([ChunkRange(blob_id(whole), 2, 9, False)]))
            await reader.exactly(ANSWER_HEADER_BYTES + CHUNK_BYTES)
            await anyio.sleep(1.0)
            assert there.given == [(here.host.peer_id, blob_id(whole))]
            await stream.reset()

    play(story)


def test_a_hundred_small_blobs_cost_about_as_many_round_trips_as_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path, delay_seconds=0.5).nodes(2) as (here, there):
            wholes = [content(2000, seed) for seed in range(101)]
            for whole in wholes:
                there.store.put(whole)
            began = anyio.current_time()
            await here.fetch(here.wanted(wholes[100], there))
            one_seconds = anyio.current_time() - began
            began = anyio.current_time()
            fetched = await here.fetch(*[here.wanted(w, there) for w in wholes[:100]])
            assert anyio.current_time() - began <= one_seconds
            assert all(f.reason is None for f in fetched)

    play(story)


def test_blobs_of_one_chunk_that_were_served_leave_nothing_at_their_server(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            wholes = [content(2000, seed) for seed in range(50)] + [content(LARGE)]
            for whole in wholes:
                there.store.put(whole)
            fetched = await here.fetch(*[here.wanted(whole, there) for whole in wholes])
            assert all(outcome.is_here for outcome in fetched)
            assert list(there.server._hashes) == [blob_id(wholes[-1])]

    play(story)


def test_what_is_in_the_store_is_not_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            here.store.put(content(1000))
            (fetched,) = await here.fetch(here.wanted(content(1000), there))
            assert fetched.read() == content(1000)
            assert here.host.traffic().sent_bytes == 0

    play(story)


def test_a_missing_blob_is_reported_and_the_others_arrive(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            there.store.put(content(1000, 1))
            missing, here_now = await here.fetch(
                here.wanted(content(1000, 0), there), here.wanted(content(1000, 1), there)
            )
            assert missing.path is None
            assert there.host.peer_id in missing.reason
            assert here_now.reason is None
            assert here.reports == [(there.host.peer_id, Conduct.MISSING)]

    play(story)


def test_a_large_blob_comes_from_several_peers_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with world.nodes(4) as (here, *sources):
            world.network.set_bandwidth(2e6)
            whole = content(48 * CHUNK_BYTES)
            for source in sources:
                source.store.put(whole)
            (fetched,) = await here.fetch(here.wanted(whole, *sources))
            assert fetched.reason is None
            sent = [s.host.traffic().sent_bytes for s in sources]
            assert min(sent) > len(whole) / 10
            assert sum(sent) < 1.05 * len(whole)

    play(story)


def test_a_peer_that_does_not_have_the_listed_blob_is_replaced_by_a_connected_one_that_has(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(3) as (here, listed, other):
            other.store.put(content(LARGE))
            await here.host.connect(other.host.addresses()[0], deadline_seconds=5.0)
            (fetched,) = await here.fetch(here.wanted(content(LARGE), listed))
            assert fetched.reason is None

    play(story)


@pytest.mark.parametrize("size", [1000, LARGE])
def test_a_peer_that_sends_other_bytes_is_reported_and_another_is_asked(tmp_path: Path, size: int) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(3) as (here, liar, honest):
            whole = content(size)
            _, hashes = size_and_chunk_hashes(whole)

            async def lie(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
                for asked in ranges:
                    await stream.send(
                        encode_answer_header(BlobStatus.HERE, size) + (b"".join(hashes) if asked.hashes else b"")
                    )
                    await stream.send(content(min(size, asked.count * CHUNK_BYTES), seed=666))

            serve_instead(liar, lie)
            (alone,) = await here.fetch(here.wanted(whole, liar))
            assert alone.path is None
            assert not here.store.has(blob_id(whole))
            assert here.reports == [(liar.host.peer_id, Conduct.WRONG_CHUNK)]
            honest.store.put(whole)
            await here.fetch(here.wanted(whole, liar, honest))
            assert here.store.read(blob_id(whole)) == whole

    play(story)


def test_hashes_that_do_not_make_up_the_id_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, liar):
            _, wrong = size_and_chunk_hashes(content(LARGE, seed=1))

            async def lie(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
                await stream.send(
                    encode_answer_header(BlobStatus.HERE, LARGE) + b"".join(wrong) + content(LARGE, seed=1)
                )

            serve_instead(liar, lie)
            (fetched,) = await here.fetch(here.wanted(content(LARGE), liar))
            assert fetched.path is None and liar.host.peer_id in fetched.reason
            assert here.reports == [(liar.host.peer_id, Conduct.WRONG_CHUNK)]

    play(story)


def test_a_wrong_size_in_an_advert_harms_neither_the_provider_nor_the_other_blobs(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            there.store.put(content(LARGE, 1))
            there.store.put(content(1000, 2))
            there.store.put(content(LARGE, 3))
            wrong = [
                Wanted(blob_id(content(LARGE, 1)), 5000, (there.host.peer_id,)),
                Wanted(blob_id(content(1000, 2)), 1 << 39, (there.host.peer_id,)),
            ]
            small, huge, right = await here.fetch(*wrong, here.wanted(content(LARGE, 3), there))
            assert {str(LARGE), "5000"} <= set(small.reason.replace(",", "").split())
            assert huge.path is None and huge.reason
            assert right.reason is None
            assert not here.reports
            assert there.server.refused == {}

    play(story)


def test_a_peer_that_accepts_a_request_and_goes_silent_is_dropped_and_another_is_asked(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(3) as (here, silent, honest):
            whole = content(LARGE)
            honest.store.put(whole)

            async def stall(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
                await stream.send(encode_answer_header(BlobStatus.HERE, len(whole)))
                await anyio.sleep_forever()

            serve_instead(silent, stall)
            began = anyio.current_time()
            (fetched,) = await here.fetch(here.wanted(whole, silent, honest))
            assert fetched.reason is None
            assert anyio.current_time() - began < 3 * blobs_module.STALL_SECONDS
            assert (silent.host.peer_id, Conduct.STALLED) in here.reports

    play(story)


def test_a_peer_that_drips_is_dropped_before_the_deadline(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, dripping):

            async def drip(stream: Stream, ranges: Sequence[ChunkRange]) -> None:
                await stream.send(encode_answer_header(BlobStatus.HERE, CHUNK_BYTES))
                while True:
                    await stream.send(b"x")
                    await anyio.sleep(5.0)

            serve_instead(dripping, drip)
            (fetched,) = await here.fetch(here.wanted(content(CHUNK_BYTES), dripping), deadline_seconds=1e6)
            assert fetched.path is None
            assert here.reports == [(dripping.host.peer_id, Conduct.STALLED)]

    play(story)


def test_a_provider_that_crashes_is_replaced_by_another_and_nothing_arrives_twice(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with world.nodes(3) as (here, dying, lasting):
            world.network.set_bandwidth(1e6)
            whole = content(40 * CHUNK_BYTES)
            dying.store.put(whole)
            lasting.store.put(whole)
            async with anyio.create_task_group() as tasks:

                async def crash_soon() -> None:
                    await anyio.sleep(3.0)
                    world.network.crash(dying.host)

                tasks.start_soon(crash_soon)
                await here.fetch(here.wanted(whole, dying, lasting))
            assert here.store.read(blob_id(whole)) == whole
            sent = dying.host.traffic().sent_bytes + lasting.host.traffic().sent_bytes
            assert sent < len(whole) + 3 * (1 << 20)

    play(story)


def test_a_fetch_parted_by_a_partition_resumes_where_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with world.nodes(2) as (here, there):
            world.network.set_bandwidth(1e6)
            whole = content(40 * CHUNK_BYTES)
            there.store.put(whole)
            async with anyio.create_task_group() as tasks:

                async def part() -> None:
                    await anyio.sleep(5.0)
                    world.network.partition([here.host], [there.host])

                tasks.start_soon(part)
                (parted,) = await here.fetch(here.wanted(whole, there), deadline_seconds=60.0)
            assert parted.path is None
            assert not here.store.has(blob_id(whole))
            partial = here.store.resume(blob_id(whole), len(whole))
            assert partial is not None
            missing = len(partial.missing())
            partial.close()
            assert 10 < missing < 35
            world.network.heal()
            await anyio.sleep(60.0)
            before = there.host.traffic().sent_bytes
            await here.fetch(here.wanted(whole, there))
            assert here.store.read(blob_id(whole)) == whole
            assert there.host.traffic().sent_bytes - before < (missing + 1) * CHUNK_BYTES

    play(story)


def test_a_deadline_ends_a_fetch_with_a_reason_and_keeps_what_came(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with world.nodes(2) as (here, there):
            world.network.set_bandwidth(1e5)
            there.store.put(content(LARGE))
            began = anyio.current_time()
            (late,) = await here.fetch(here.wanted(content(LARGE), there), deadline_seconds=9.0)
            assert anyio.current_time() - began == pytest.approx(9.0, abs=0.5)
            assert "9 s" in late.reason
            partial = here.store.resume(blob_id(content(LARGE)), LARGE)
            assert partial is not None
            assert len(partial.missing()) < 11
            partial.close()

    play(story)


def test_an_unreachable_provider_is_a_reason_in_words(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(1) as (here,):
            (fetched,) = await here.fetch(Wanted(bytes(32), 100, ("12D3KooWnobody",)))
            assert fetched.path is None and fetched.reason.startswith("12D3KooWnobody: ")
            (nobody,) = await here.fetch(Wanted(bytes(32), 100, ()))
            assert nobody.path is None and nobody.reason
            (impossible,) = await here.fetch(Wanted(bytes(32), -5, ()))
            assert "-5" in impossible.reason

    play(story)


def test_two_fetches_of_one_blob_share_its_way(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with world.nodes(2) as (here, there):
            world.network.set_bandwidth(1e6)
            there.store.put(content(LARGE))
            outcomes: list[Fetched] = []

            async def one() -> None:
                outcomes.extend(await here.fetch(here.wanted(content(LARGE), there)))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
                tasks.start_soon(one)
            assert [o.reason for o in outcomes] == [None, None]
            assert there.host.traffic().sent_bytes < 1.1 * LARGE

    play(story)


def test_a_store_without_room_fails_that_blob_with_its_remedy_and_fetches_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            there.store.put(content(LARGE))
            there.store.put(content(1000))
            here.store._room._budget_bytes = LARGE - 1
            large, small = await here.fetch(here.wanted(content(LARGE), there), here.wanted(content(1000), there))
            assert "swarm.store_bytes" in large.reason
            assert small.reason is None
            assert not here.reports

    play(story)


def test_uploads_keep_to_their_limit_and_a_slow_one_is_not_a_stalled_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2, upload_bytes_per_second=20_000) as (here, there):
            there.store.put(content(LARGE))
            began = anyio.current_time()
            (fetched,) = await here.fetch(here.wanted(content(LARGE), there), deadline_seconds=1000.0)
            assert fetched.reason is None
            assert anyio.current_time() - began == pytest.approx(LARGE / 20_000, rel=0.05)
            assert not here.reports

    play(story)


def parts_of_an_upload(directory: Path, *, takes_at_once: bool, chunks: int = 16) -> list[int]:
    """Returns the lengths of the parts in which a blob of so many chunks goes to a peer."""
    parts: list[int] = []

    async def counted(stream: Stream, part: bytes, seconds: float) -> None:
        parts.append(len(part))
        await send_within(stream, part, seconds)
        if not takes_at_once:
            await anyio.sleep(blobs_module.QUICK_SECONDS * 2)

    async def story() -> None:
        async with World(directory).nodes(2) as (here, there):
            there.store.put(content(chunks * CHUNK_BYTES))
            (fetched,) = await here.fetch(here.wanted(content(chunks * CHUNK_BYTES), there))
            assert fetched.reason is None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs_module, "send_within", counted)
        play(story)
    return parts


def test_a_peer_that_takes_parts_at_once_gets_larger_ones_and_a_slow_one_small_ones(tmp_path: Path) -> None:
    quick = parts_of_an_upload(tmp_path / "quick", takes_at_once=True)
    slow = parts_of_an_upload(tmp_path / "slow", takes_at_once=False)
    assert sum(quick) == sum(slow)
    assert max(slow) == blobs_module.MOVE_BYTES
    assert max(quick) == blobs_module.SEND_BYTES
    assert len(quick) <= len(slow) / 2


def test_a_peer_with_too_many_requests_under_way_is_told_busy_and_is_served_later(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            there.store.put(content(1000))
            there.store.put(content(LARGE))
            await here.host.connect(there.host.addresses()[0], deadline_seconds=5.0)
            held = []
            for _ in range(STREAMS_PER_PEER):
                held.append(await here.host.open_stream(there.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0))
                await held[-1].send(framed_message([ChunkRange(blob_id(content(LARGE)), 0, 100, False)]))
            (busy,) = await here.fetch(here.wanted(content(1000), there), deadline_seconds=5.0)
            assert busy.path is None
            for stream in held:
                await stream.reset()
            (fetched,) = await here.fetch(here.wanted(content(1000), there))
            assert fetched.reason is None

    play(story)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (struct.pack(">I", 0xFFFFFFFF), "oversized"),
        (struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1", "malformed"),
        (framed_message([ChunkRange(bytes(32), 0, 1, False)] * 1025), "oversized"),
        (struct.pack(">I", 38) + msgspec.msgpack.encode([(bytes(31), 0, 1, False)]), "malformed"),
        (framed_message([ChunkRange(bytes(32), 0, 2**40, False)]), "malformed"),
        (struct.pack(">I", 1000) + b"\x91" * 1000, "oversized"),
    ],
)
def test_a_hostile_request_is_refused_counted_and_reported(tmp_path: Path, raw: bytes, reason: str) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (hostile, there):
            there.store.put(content(1000))
            await hostile.host.connect(there.host.addresses()[0], deadline_seconds=5.0)
            stream = await hostile.host.open_stream(there.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0)
            await stream.send(raw)
            with pytest.raises(TransportError):
                assert await stream.receive(100) != b""
            assert there.server.refused == {reason: 1}
            assert there.reports == [(hostile.host.peer_id, Conduct.HOSTILE_REQUEST)]
            (fetched,) = await hostile.fetch(hostile.wanted(content(1000), there))
            assert fetched.reason is None

    play(story)


def test_a_request_beyond_the_blob_is_cut_to_what_there_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            there.store.put(content(LARGE))
            await here.host.connect(there.host.addresses()[0], deadline_seconds=5.0)
            stream = await here.host.open_stream(there.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0)
            blob = blob_id(content(LARGE))
            await stream.send(
                framed_message([ChunkRange(blob, 10, 2**32, False), ChunkRange(blob, 2**32, 2**32, False)])
            )
            reader = StreamReader(stream, stall_seconds=5.0)
            assert decode_answer_header(await reader.exactly(ANSWER_HEADER_BYTES)) == (BlobStatus.HERE, LARGE)
            assert await reader.exactly(1234) == content(LARGE)[-1234:]
            assert decode_answer_header(await reader.exactly(ANSWER_HEADER_BYTES)) == (BlobStatus.HERE, LARGE)

    play(story)


def test_a_peer_that_asks_and_does_not_read_is_cut_off_and_frees_its_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (greedy, there):
            there.store.put(content(LARGE))
            await greedy.host.connect(there.host.addresses()[0], deadline_seconds=5.0)
            for _ in range(STREAMS_PER_PEER):
                stream = await greedy.host.open_stream(there.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0)
                await stream.send(framed_message([ChunkRange(blob_id(content(LARGE)), 0, 100, False)]))
            await anyio.sleep(2 * blobs_module.STALL_SECONDS)
            (fetched,) = await greedy.fetch(greedy.wanted(content(LARGE), there), deadline_seconds=20.0)
            assert fetched.reason is None
            assert not there.reports

    play(story)


def test_a_full_disk_during_a_fetch_is_a_reason_and_not_an_accusation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with World(tmp_path).nodes(2) as (here, there):
            there.store.put(content(1000))

            def full(blob: bytes, content: bytes | memoryview) -> Path:
                raise StorageError("cannot store: No space left on device; free space on this disk")

            monkeypatch.setattr(here.store, "put_fetched", full)
            (fetched,) = await here.fetch(here.wanted(content(1000), there))
            assert "free space" in fetched.reason
            assert not here.reports

    play(story)
