"""Honest nodes and attackers on the simulated network, for ``blobs_sources`` and ``blobs_uploads``."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import msgspec

from protocol.blob_id import blob_id, id_of_chunk_hashes, size_and_chunk_hashes
from protocol.errors import UnreachableError
from protocol.limits import CHUNK_BYTES
from protocol.streams.blob_messages import BLOB_PROTOCOL, BlobStatus, ChunkRange, encode_answer_header
from swarm.api import Wanted
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.store import ContentStore
from swarm.host import PeerId, Stream
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.reputation import Conduct, ReputationBook
from swarm.stream_reader import StreamReader

SYBILS = 300
Answer = Callable[[Stream, Sequence[ChunkRange]], Awaitable[None]]


class BlobNode:
    """An honest node: store, server, fetcher and reputations, as in ``swarm.service``."""

    def __init__(
        self,
        host: SimulatedHost,
        hosts: dict[PeerId, SimulatedHost],
        directory: Path,
        *,
        store_bytes: int,
        upload: float,
    ) -> None:
        self.host = host
        self.reputations = ReputationBook()
        self.reports: Counter[str] = Counter()
        self.store = ContentStore(directory, budget_bytes=store_bytes)
        self.server = BlobServer(host, self.store, upload_bytes_per_second=upload, report=self._report)
        self._hosts = hosts
        self._fetcher = Fetcher(host, self.store, reach=self._reach, report=self._report)

    async def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[bool]:
        """Whether each arrived. Peers are asked in the order of their reputation, as the service does."""
        now_seconds = anyio.current_time()
        ordered = [
            Wanted(w.blob, w.size, tuple(sorted(w.peers, key=lambda peer: -self.reputations.of(peer, now_seconds))))
            for w in wanted
        ]
        fetched = await self._fetcher.fetch(ordered, deadline_seconds=deadline_seconds)
        return [each.is_here for each in fetched]

    def _report(self, peer: PeerId, conduct: Conduct, detail: str) -> None:
        self.reports[conduct.value] += 1
        self.reputations.observe(peer, conduct, anyio.current_time())

    async def _reach(self, peer: PeerId, deadline_seconds: float) -> None:
        if peer not in self._hosts:
            raise UnreachableError(f"no address of {peer} is known")
        await self.host.connect(self._hosts[peer].addresses()[0], deadline_seconds=deadline_seconds)


class BlobNetwork:
    """``nodes`` are honest, ``sybils`` are hosts that do what an attack makes them do."""

    def __init__(self, directory: Path, *, seed: int) -> None:
        self.random = Random(seed)
        self._network = SimulatedNetwork(seed=seed, delay_seconds=(0.02, 0.08))
        self._directory = directory
        self._hosts: dict[PeerId, SimulatedHost] = {}
        self.nodes: list[BlobNode] = []
        self.sybils: list[SimulatedHost] = []

    @asynccontextmanager
    async def running(
        self, *, honest: int, sybils: int, store_bytes: int = 1 << 30, upload: float = 0.0
    ) -> AsyncIterator[None]:
        for number in range(honest):
            host = self._network.host(f"honest {number}")
            directory = self._directory / str(number)
            self.nodes.append(BlobNode(host, self._hosts, directory, store_bytes=store_bytes, upload=upload))
        self.sybils = [self._network.host(f"sybil {number}") for number in range(sybils)]
        for host in (*(node.host for node in self.nodes), *self.sybils):
            self._hosts[host.peer_id] = host
        async with anyio.create_task_group() as tasks:
            for host in self._hosts.values():
                await tasks.start(_live, host)
            yield
            tasks.cancel_scope.cancel()


async def _live(host: SimulatedHost, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    async with host.run():
        task_status.started()
        await anyio.sleep_forever()


def serve(host: SimulatedHost, answer: Answer) -> None:
    """Answers well-formed requests as the attack says."""

    async def on_stream(stream: Stream) -> None:
        reader = StreamReader(stream, stall_seconds=600.0)
        while not await reader.at_end():
            length = int.from_bytes(await reader.exactly(4), "big")
            await answer(stream, msgspec.msgpack.decode(await reader.exactly(length), type=list[ChunkRange]))

    host.handle(BLOB_PROTOCOL, on_stream)


class KnownBlobs:
    """What attackers know of blobs, to answer as if they had them. Hashes that are made up verify like others."""

    def __init__(self) -> None:
        self._hashes: dict[bytes, tuple[int, list[bytes]]] = {}

    def know(self, whole: bytes) -> None:
        size, hashes = size_and_chunk_hashes(whole)
        self._hashes[blob_id(whole)] = size, list(hashes)

    def make_up(self, size: int, random: Random) -> bytes:
        hashes = [random.randbytes(32) for _ in range(-(-size // CHUNK_BYTES))]
        blob = id_of_chunk_hashes(size, hashes)
        self._hashes[blob] = size, hashes
        return blob

    def head(self, wanted: ChunkRange) -> bytes:
        size, hashes = self._hashes.get(
            wanted.blob, (CHUNK_BYTES, [])
        )  # what another peer was asked for and did not have
        return encode_answer_header(BlobStatus.HERE, size) + (b"".join(hashes) if wanted.hashes else b"")


def content(random: Random, size: int) -> tuple[bytes, bytes]:
    whole = random.randbytes(size)
    return blob_id(whole), whole
