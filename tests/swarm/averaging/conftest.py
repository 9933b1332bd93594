"""Whole members of a swarm that average weights for their learners, on the simulated network, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
from anyio.abc import TaskGroup, TaskStatus

from protocol.messages import Heartbeat
from protocol.streams.averaging_messages import Offer
from protocol.weights.dense_weights import ENCODING, encode_dense, open_dense, widened
from protocol.weights.tensor_layout import TensorLayout
from swarm import api
from swarm.averaging.weight_averaging import Measure
from swarm.averaging.weights_difference import Difference, measure_difference
from swarm.hosts.simulated.network import SimulatedHost
from swarm.service import SwarmService
from swarm.settings import ServiceSettings
from tests.swarm.virtual_world import VirtualWorld

FAMILY, OTHER_FAMILY = bytes([1]) * 16, bytes([9]) * 16
LAYOUT = TensorLayout.of({"bias": (7,), "matrix": (500, 600)})
EPOCH = 1_700_000_000.0
COMMON = np.random.default_rng(0).standard_normal(sum(LAYOUT.sizes))


def now_seconds() -> float:
    return EPOCH + anyio.current_time()


def blob_of(values: np.ndarray, layout: TensorLayout = LAYOUT) -> bytes:
    patterns = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return encode_dense(layout, np.split(patterns, np.cumsum(layout.sizes)[:-1]))


def weights(seed: int, spread: float = 0.1) -> bytes:
    """Weights that a replica learnt from a common start; their distance to others grows with ``spread``."""
    return blob_of(COMMON + spread * np.random.default_rng(seed).standard_normal(COMMON.size))


def values(blob: bytes) -> np.ndarray:
    return np.concatenate([widened(tensor) for tensor in open_dense(blob, LAYOUT)])


def formula(own: bytes, theirs: bytes, weight: float = 1.0) -> bytes:
    """Stands for the outer step."""
    return blob_of(values(own) + weight * (values(theirs) - values(own)) / 2)


async def measured_at_once(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """Measures without a thread, for which virtual time would not wait."""
    return measure_difference(encoding, theirs, ours, layout)


async def believe_anything(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """Makes a member dishonest: it offers and accepts any weights."""
    return Difference(1.0, 1.0)


Formula = Callable[[bytes, bytes, float], bytes]  # (ours, theirs, weight) -> our new weights


class Node:
    """A member and its learner, which averages in tasks that die with it."""

    def __init__(self, service: SwarmService, host: SimulatedHost, blob: bytes, averaged: Formula | None) -> None:
        self._averaged = averaged
        self.service = service
        self.host = host
        self.peer = host.peer_id
        self.blob = blob  # its weights
        self.reply: api.Reply | None = None
        self.known = api.KnownPartners(learnt=1e6)  # so much that first distances are short beside it
        self.ended = anyio.Event()
        self.tasks: TaskGroup | None = None

    def request(self, *, deadline_seconds: float = 60.0, **changes: object) -> api.Average:
        stored = self.service.store.put(self.blob)
        offer = Offer(FAMILY, LAYOUT.digest, ENCODING, 5, stored, len(self.blob))
        return api.Average(msgspec.structs.replace(offer, **changes), LAYOUT.tensors, deadline_seconds, self.known)

    async def average(self, **changes: Any) -> api.Reply:
        self.reply = await self.service.answer(self.request(**changes))
        if isinstance(self.reply, api.AverageReply):
            self.known = msgspec.structs.replace(self.known, past=self.reply.past)
        if isinstance(self.reply, api.AverageReply) and self.reply.path is not None:
            theirs = Path(self.reply.path).read_bytes()  # noqa: ASYNC240  virtual time waits for no thread
            if self._averaged is not None:
                self.blob = self._averaged(self.blob, theirs, self.reply.weight)
        self.ended.set()
        return self.reply

    def averages(self, **changes: object) -> None:
        """Starts to average in the background."""
        self.ended = anyio.Event()

        async def run() -> None:
            await self.average(**changes)

        assert self.tasks is not None
        self.tasks.start_soon(run)

    @property
    def averaged(self) -> bool:
        return isinstance(self.reply, api.AverageReply) and self.reply.partner is not None

    async def says(self, family: bytes) -> None:
        beat = Heartbeat("n", "s", "m", family, bytes(16), 1, 1, "learning", 1.0, 0, 0, ())
        await self.service.answer(api.Beat(beat))

    async def status(self) -> api.AveragingStatus:
        reply = await self.service.answer(api.AskStatus())
        assert isinstance(reply, api.SwarmStatus)
        return reply.averaging

    async def sees(self, other: Node) -> api.PeerStatus:
        reply = await self.service.answer(api.AskPeers())
        assert isinstance(reply, api.PeerList)
        return next(p for p in reply.peers if p.peer == other.peer)


class World(VirtualWorld):
    family, other_family, layout = FAMILY, OTHER_FAMILY, LAYOUT
    blob_of, formula = staticmethod(blob_of), staticmethod(formula)
    values, weights = staticmethod(values), staticmethod(weights)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._first: str | None = None

    @asynccontextmanager
    async def nodes(
        self,
        count: int,
        *,
        families: Sequence[bytes] = (),
        dishonest: Sequence[int] = (),
        spread: float = 0.1,
        averaged: Formula = formula,
        **changes: object,
    ):
        """``count`` connected members that know each other's family. Dishonest ones keep their weights."""
        nodes: list[Node] = []
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                lies = number in dishonest
                measure, applied = (believe_anything, None) if lies else (measured_at_once, averaged)
                node = await tasks.start(self._live, number, measure, applied, weights(number, spread), changes)
                await node.says(families[number] if families else FAMILY)
                nodes.append(node)
            await anyio.sleep(10.0)
            assert all(len(node.host.peers()) == count - 1 for node in nodes)
            yield nodes
            tasks.cancel_scope.cancel()

    async def _live(
        self,
        number: int,
        measure: Measure,
        averaged: Formula | None,
        blob: bytes,
        changes: dict[str, object],
        *,
        task_status: TaskStatus[Node],
    ) -> None:
        home = self.directory / str(number)
        home.mkdir(parents=True)
        host = self.network.host(f"node {number}")
        fields: dict[str, object] = {
            "home": str(home), "swarm_name": "test", "swarm_id": "ab" * 16, "heartbeat_seconds": 1.0,
            "peers": (self._first,) if self._first else (), **changes,
        }  # fmt: skip
        self._first = self._first or host.addresses()[0]
        service = SwarmService(
            host,
            host.key,
            ServiceSettings(**fields),  # type: ignore[arg-type]
            wall_clock=now_seconds,
            random=Random(number),
            measure=measure,
        )
        node = Node(service, host, blob, averaged)
        async with anyio.create_task_group() as tasks:
            node.tasks = tasks

            async def run() -> None:
                await service.run()
                tasks.cancel_scope.cancel()

            tasks.start_soon(run)
            await service.started.wait()
            task_status.started(node)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
