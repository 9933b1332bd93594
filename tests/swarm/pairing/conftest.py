"""Nodes that average with each other on the simulated network, in virtual time."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import msgspec
import pytest
from anyio.abc import TaskGroup, TaskStatus

from protocol.blob_id import blob_id
from protocol.errors import UnreachableError
from protocol.streams.averaging_messages import AVERAGING_PROTOCOL, Have, Offer, Propose
from swarm.api import Wanted
from swarm.averaging.pairing import Pairing, PairingOutcome
from swarm.averaging.pairing_rules import Terms
from swarm.averaging.weight_exchange import Conversation
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.store import ContentStore
from swarm.host import Stream
from swarm.hosts.simulated.network import SimulatedHost
from swarm.peers.reputation import Conduct
from tests.swarm.virtual_world import VirtualWorld

FAMILY, LAYOUT = b"f" * 16, b"l" * 16
TERMS = Terms(max_bytes=1 << 20, max_steps_apart=10, exchange_seconds=120.0)
SIZE = 20_000
SPOILT = b"NaN!"


def formula(own: bytes, theirs: bytes) -> bytes:
    """Stands for the outer step: its result names both inputs."""
    return hashlib.sha256(min(own, theirs) + max(own, theirs)).digest() * (SIZE // 32)


class Node:
    """A host with a store, some weights, and the pairing under test. Averages in tasks that die with the host."""

    def __init__(self, world: World, host: SimulatedHost, weights: bytes) -> None:
        self.world = world
        self.host = host
        self.peer = host.peer_id
        self.weights = weights
        self.store = ContentStore(world.directory / host.peer_id)
        self.reports: list[tuple[str, Conduct]] = []
        self.outcome: PairingOutcome | None = None
        self.checking_seconds = 0.0  # for its check of weights
        self.ended = anyio.Event()
        self.tasks: TaskGroup | None = None
        self.accepts: Callable[[str], bool] = lambda peer: True
        self.is_known: Callable[[str], bool] = lambda peer: True
        self.on_trial: Callable[[str], bool] = lambda peer: False
        BlobServer(host, self.store, report=self.report, on_sent=lambda *sent: self.pairing.on_given(*sent))
        self._fetcher = Fetcher(host, self.store, reach=self.reach, report=self.report)
        self.pairing = Pairing(
            host, TERMS, reach=self.reach, fetch_weights=self.bring, report=self.report, random=Random(host.peer_id)
        )

    def report(self, peer: str, conduct: Conduct, detail: str) -> None:
        self.reports.append((peer, conduct))

    async def reach(self, peer: str, deadline_seconds: float) -> None:
        address = self.world.addresses.get(peer)
        if address is None:
            raise UnreachableError(f"no address of {peer} is known")
        await self.host.connect(address, deadline_seconds=deadline_seconds)

    async def bring(self, peer: str, offer: Offer) -> str | None:
        (fetched,) = await self._fetcher.fetch([Wanted(offer.blob, offer.size, (peer,))], deadline_seconds=1000.0)
        if fetched.reason is not None:
            return fetched.reason
        await anyio.sleep(self.checking_seconds)
        return "not finite" if self.store.read(offer.blob).startswith(SPOILT) else None

    def offer(self, **changes: object) -> Offer:
        self.store.put(self.weights)
        offer = Offer(FAMILY, LAYOUT, "dense", 5, blob_id(self.weights), len(self.weights))
        return msgspec.structs.replace(offer, **changes)

    async def average(self, *others: str, deadline_seconds: float = 60.0, **changes: object) -> PairingOutcome:
        outcome = await self.pairing.average(
            self.offer(**changes),
            lambda: others,
            accepts=self.accepts,
            deadline_seconds=deadline_seconds,
            is_known=self.is_known,
            on_trial=self.on_trial,
        )
        if outcome.theirs is not None:
            self.weights = formula(self.weights, self.store.read(outcome.theirs.blob))
        self.outcome = outcome
        self.ended.set()
        return outcome

    def averages(self, *others: str, deadline_seconds: float = 60.0, **changes: object) -> None:
        """Starts to average in the background."""

        async def run() -> None:
            await self.average(*others, deadline_seconds=deadline_seconds, **changes)

        assert self.tasks is not None
        self.tasks.start_soon(run)

    def answers(self, answer: Callable[[Conversation, Propose], Awaitable[None]]) -> None:
        """Replaces the pairing by one that reads an honest proposal and continues as the test says."""

        async def serve(stream: Stream) -> None:
            conversation = Conversation(stream)
            await answer(conversation, await conversation.receive(100.0, Propose, Have))  # type: ignore[arg-type]  # no other test sends Have

        self.host.handle(AVERAGING_PROTOCOL, serve)

    @property
    def committed(self) -> bool:
        return self.outcome is not None and self.outcome.partner is not None


class World(VirtualWorld):
    terms, size, spoilt = TERMS, SIZE, SPOILT
    formula = staticmethod(formula)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.addresses: dict[str, str] = {}
        self._made: list[Node] = []

    @asynccontextmanager
    async def nodes(self, count: int):
        """``count`` nodes, in the order of their peer ids."""
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                await tasks.start(self.live, self.network.host(f"node {number}"), Random(number).randbytes(SIZE))
            yield sorted(self._made, key=lambda node: node.peer)
            tasks.cancel_scope.cancel()

    async def live(self, host: SimulatedHost, weights: bytes, *, task_status: TaskStatus[Node]) -> None:
        node = Node(self, host, weights)
        self._made.append(node)
        async with host.run(), anyio.create_task_group() as node.tasks:
            self.addresses[host.peer_id] = host.addresses()[0]
            task_status.started(node)
            await anyio.sleep_forever()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
