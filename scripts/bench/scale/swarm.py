"""A whole swarm on the simulated network, from its start to the end of its observation."""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import anyio
from anyio.abc import TaskGroup
from trio.testing import MockClock

from node.supervision.watching.process_memory import resident_bytes
from scripts.bench.common.shared_opening import SharedOpening
from scripts.bench.scale.activity import PARTNER_SECONDS, Activity
from scripts.bench.scale.delivery import CALM, Delivery
from scripts.bench.scale.disturbances import Calm, churn, part, partitions
from scripts.bench.scale.searches import Search, counted
from scripts.bench.scale.swarm_node import EPOCH, Node, SwarmBefore, new_service
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork

STARTING_SECONDS: Final = 5.0
SETTLING_SECONDS: Final = 5.0
REMEMBERED: Final = 12  # addresses that a node of the start knows
MESH_DEGREE: Final = 4
PROGRESS_SECONDS: Final = 10.0  # of virtual time


@dataclass(frozen=True)
class Bounds:
    """When the observation ends: after so much virtual time, or once all of the run took so long."""

    minutes: float
    real_minutes: float = math.inf


@dataclass
class Observed:
    """What a node of the start that stayed received, sent and decided, over all of them; and what it took."""

    seconds: float = 0.0
    node_seconds: float = 0.0
    received_bytes: int = 0
    sent_bytes: int = 0
    accepted: int = 0
    refused: int = 0
    fetched: Counter[bool] = field(default_factory=Counter)
    searches: list[Search] = field(default_factory=list)
    connections: float = 0.0
    resident_bytes: float = 0.0
    cpu_seconds: float = 0.0  # of a node, a second
    opening_seconds: float = 0.0  # of a node, a second


class Swarm:
    """Call ``run`` once; ``observed`` and ``delivery`` then have what was counted."""

    delivery: Delivery

    def __init__(
        self, nodes: int, sybils: float, bounds: Bounds, folder: Path, clock: MockClock, opening: SharedOpening
    ) -> None:
        self._size, self._sybil_share, self._bounds, self._folder = nodes, sybils, bounds, folder
        self._clock, self._opening = clock, opening
        self._random = Random(nodes)
        self._network = SimulatedNetwork(seed=nodes, mesh_degree=MESH_DEGREE)
        self._nodes: list[Node] = []
        self._made = 0
        self._tasks: TaskGroup
        self._calm = Calm(self.now_seconds)
        self._activity = Activity(
            nodes,
            now_seconds=self.now_seconds,
            honest_peers=lambda: {node.host.peer_id for node in self._nodes if not node.is_sybil},
            is_calm=lambda: self.delivery.is_counting and self._calm.holds(),
        )
        self.observed = Observed()

    def now_seconds(self) -> float:
        return EPOCH + self._clock.current_time()

    async def run(self) -> None:
        began_all_seconds = time.monotonic()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self.delivery = Delivery(self._nodes, self._calm, tasks, self.now_seconds)
            tasks.start_soon(self._show_progress)
            await self._start_all()
            await anyio.sleep(SETTLING_SECONDS)
            gc.freeze()
            tasks.start_soon(churn, self._nodes, self._size, self._network, self._random, self._join_newly)
            tasks.start_soon(
                part, partitions(self._bounds.minutes), self._nodes, self._network, self._random, self._calm
            )
            await self._observe(began_all_seconds)
            tasks.cancel_scope.cancel()

    async def _observe(self, began_all_seconds: float) -> None:
        before = {node: (node.host.traffic(), *node.announcements()) for node in self._nodes}
        began_cpu, began, asked = time.process_time(), anyio.current_time(), self._opening.asked
        self.delivery.is_counting = True
        while (seconds := anyio.current_time() - began) < 60.0 * self._bounds.minutes:
            if time.monotonic() - began_all_seconds > 60.0 * self._bounds.real_minutes:
                break
            await anyio.sleep(min(1.0, 60.0 * self._bounds.minutes - seconds))
        found, node_seconds = self.observed, max(1e-9, seconds * self._size)
        found.seconds = seconds
        found.cpu_seconds = (time.process_time() - began_cpu) / node_seconds
        found.opening_seconds = (self._opening.asked - asked) * self._opening.seconds_each / node_seconds
        for node in before:
            if node in self._nodes and not node.is_sybil:
                after, (traffic, accepted, refused) = node.host.traffic(), before[node]
                found.received_bytes += after.received_bytes - traffic.received_bytes
                found.sent_bytes += after.sent_bytes - traffic.sent_bytes
                found.accepted += node.announcements()[0] - accepted
                found.refused += node.announcements()[1] - refused
                found.node_seconds += seconds
                found.fetched += node.fetched
        found.searches = counted(
            self._activity.searches,
            from_seconds=EPOCH + began,
            to_seconds=self.now_seconds() - PARTNER_SECONDS - 1.0,
        )
        found.connections = sum(len(node.host.peers()) for node in self._nodes) / len(self._nodes)
        found.resident_bytes = resident_bytes(os.getpid()) or 0

    async def _show_progress(self) -> None:
        while True:
            await anyio.sleep(PROGRESS_SECONDS)
            took = f"{anyio.current_time():.0f} s of virtual time took {time.process_time():.0f} s of the processor"
            delivered = f"{self.delivery.share(*CALM):.3%} delivered in calm so far"
            print(f"{len(self._nodes)} of {self._size} nodes; {took}; {delivered}", file=sys.stderr, flush=True)

    # Joining

    async def _start_all(self) -> None:
        hosts = [self._network.host(f"node-{number}") for number in range(self._size)]
        sybils = {host.peer_id for host in self._random.sample(hosts[1:], round(self._sybil_share * self._size))}
        before = SwarmBefore(hosts, sybils, self._random)
        for number, host in enumerate(hosts):
            known = self._random.sample(hosts[:number], min(REMEMBERED, number))
            await self._join(host, known, host.peer_id in sybils, before)
            await anyio.sleep(STARTING_SECONDS / self._size)
        print("all nodes have started", file=sys.stderr, flush=True)

    async def _join_newly(self) -> None:
        known = [node.host for node in self._random.sample(self._nodes, min(3, len(self._nodes)))]
        is_sybil = self._random.random() < self._sybil_share
        await self._join(self._network.host(f"node-{self._made}"), known, is_sybil, None)

    async def _join(
        self, host: SimulatedHost, known: Sequence[SimulatedHost], is_sybil: bool, before: SwarmBefore | None
    ) -> None:
        """Starts a node that remembers the addresses of ``known``, and a swarm that was there before if there was."""
        name = f"node-{self._made}"
        self._made += 1
        service = new_service(host, name, self._folder / name, known, self.now_seconds)
        if before is not None:
            before.remember(service, host, self.now_seconds())
        node = Node(service, host, is_sybil, before is not None, self.now_seconds())
        if not is_sybil:
            self.delivery.watch(node)
        self._nodes.append(node)
        self._tasks.start_soon(self._activity.live, node)
        await service.started.wait()
