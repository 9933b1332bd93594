"""A whole swarm of simulated nodes under churn: what arrives, what a node pays, and whether that grows with the swarm.

    python -m scripts.bench.swarm_scale [--nodes 100 1000] [--minutes 10] [--real-minutes N] [--sybils .1]
        [--json]

Every node is the swarm's own code (``SwarmService``) on a simulated host in virtual time, a random learner beside it:
each round of ten seconds it shares a group, in every third it fetches one of another node and judges it, and every two
minutes it seeks a peer to average weights with. Gossip goes through meshes of four, as on our libp2p host. Thirty
percent of the nodes are replaced every ten minutes, half of them without a goodbye, by newcomers that know three
addresses. Twice in the second half of the time the network falls into two halves, for a minute or a ninth of a short
run. One node in ten is a sybil, which announces once a second, more than is accepted of it, and serves nothing.

The nodes at the start are those of a swarm that was there before: each knows addresses of twelve others, has heard
everybody, and has used up what it may send at once. They start within five seconds. Counted ``SETTLING_SECONDS`` later:

- delivered: of all announcements by honest nodes, the share of honest nodes that accepted them within 15 s, of those
  that were there for 30 s before and 15 s after, outside of partitions and of the 45 s after one;
- bytes received and sent by a node, a second;
- processor time of the whole simulation, a node and a second. Each announcement is opened (signature, structure, types)
  once for all nodes that received it; what it would cost if each node had opened it, which is what a real node does,
  is computed from the measured cost of one opening and printed beside it;
- fetches that brought their blob, of groups of honest nodes that are still there, and searches for a partner to average
  with that ended in a commit, both outside of partitions and of the 45 s after one;
- connections of a node at the end, and memory of the process over nodes.
"""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import anyio
import msgspec
import numpy as np
from anyio.abc import TaskGroup
from trio.testing import MockClock

from node.supervision.watching.process_memory import resident_bytes
from protocol.errors import StarlingError
from protocol.messages import Announcement, Body, GroupAdvert, Heartbeat, PromptRef, RolloutAdvert
from protocol.streams.averaging_messages import Offer
from protocol.weights.dense_weights import ENCODING, encode_dense
from protocol.weights.tensor_layout import TensorLayout
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.shared_opening import SharedOpening
from swarm import api
from swarm.announcements.gossip import GossipRefusal
from swarm.announcements.pacing import ADVERTS_AT_ONCE, allowance, heartbeat_seconds
from swarm.announcements.sender_slots import RESERVE
from swarm.averaging.weights_difference import Difference, measure_difference
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.claimed_addresses import claims_of
from swarm.service import SwarmService
from swarm.settings import ServiceSettings

EPOCH: Final = 1_700_000_000.0
STARTING_SECONDS: Final = 5.0
SETTLING_SECONDS: Final = 5.0
REMEMBERED: Final = 12  # addresses that a node of the start knows
MESH_DEGREE: Final = 4
PROGRESS_SECONDS: Final = 10.0  # of virtual time
ROUND_SECONDS: Final = 10.0
ROUNDS_PER_FETCH: Final = 3
FETCH_SECONDS: Final = 10.0
AVERAGE_EVERY_SECONDS: Final = 120.0
PARTNER_SECONDS: Final = 30.0
REPLACED_SHARE: Final = 0.3  # of the nodes, in ten minutes
SYBIL_SHARE: Final = 0.1
HEARTBEAT_SECONDS: Final = 5.0  # as in the settings of a service
SYBIL_SECONDS: Final = 1.0  # between two announcements of a sybil
PARTITION_SECONDS: Final = 60.0  # at most; a ninth of the time
PARTITION_AFTER: Final = (0.5, 0.25)  # of the time, between the start and one, and between one and the next
AFTER_PARTITION_SECONDS: Final = 45.0
PRESENT_SECONDS: Final = 30.0  # that a newcomer is there before an announcement which it must hear
DELIVERY_SECONDS: Final = 15.0
GROUP_BYTES: Final = 2000
RECEIVED: Final = "received by a node"
FAMILY: Final = bytes([1]) * 16
LAYOUT: Final = TensorLayout.of({"weights": (500,)})
COLLECTING: Final = (100_000, 20, 100)  # rarely: most of a million objects stay for as long as the run
SWARM_ID: Final = "5c" * 16
IN_MEMORY: Final = Path("/dev/shm")  # for the stores of all nodes, where there is one


@dataclass(eq=False)
class Node:
    service: SwarmService
    host: SimulatedHost
    is_sybil: bool
    is_of_start: bool
    began_seconds: float
    task: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    fetched: Counter[bool] = field(default_factory=Counter)
    averaged: Counter[bool] = field(default_factory=Counter)
    cursor: int = 0

    def is_there_since(self, seconds: float) -> bool:
        return self.is_of_start or self.began_seconds < seconds

    def announcements(self) -> tuple[int, int]:
        """Returns how many it accepted, and how many it refused for the rate of their sender."""
        gossip = self.service.gossip
        return gossip.accepted.total(), gossip.rejected[GossipRefusal.RATE]


@dataclass
class Sent:
    """An announcement on its way."""

    expected: set[str]  # the honest peers that are to hear it
    heard: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Bounds:
    """When the observation ends: after so much virtual time, or once all of the run took so long."""

    minutes: float
    real_minutes: float


class Swarm:
    def __init__(
        self, nodes: int, sybils: float, bounds: Bounds, folder: Path, clock: MockClock, opening: SharedOpening
    ) -> None:
        self._bounds, self._clock, self._opening = bounds, clock, opening
        self._size, self._minutes, self._folder = nodes, bounds.minutes, folder
        self._random = Random(nodes)
        self._network = SimulatedNetwork(seed=nodes, mesh_degree=MESH_DEGREE)
        self._nodes: list[Node] = []
        self._made = 0
        self._sybil_share = sybils
        self._sybils: set[str] = set()  # of the start
        self._said: dict[str, Heartbeat] = {}  # before the start
        self._tasks: TaskGroup
        self._sent: dict[tuple[str, int], Sent] = {}
        self._disturbed_until_seconds = 0.0
        self._observing = False
        self.expected, self.delivered = 0, 0
        self.fetched: Counter[bool] = Counter()
        self.averaged: Counter[bool] = Counter()
        self.connections, self.resident_bytes = 0.0, 0.0
        self.received_bytes, self.sent_bytes, self.node_seconds = 0, 0, 0.0
        self.accepted, self.refused = 0, 0
        self.cpu_seconds, self.opening_seconds = 0.0, 0.0
        self.observed_seconds = 0.0

    def now_seconds(self) -> float:
        return EPOCH + self._clock.current_time()

    async def run(self) -> None:
        began_all = time.monotonic()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._show_progress)
            hosts = [self._network.host(f"node-{number}") for number in range(self._size)]
            sybils = self._random.sample(hosts[1:], round(self._sybil_share * self._size))
            self._sybils = {host.peer_id for host in sybils}
            for number, host in enumerate(hosts):
                started = hosts[:number]
                await self._join(host, self._random.sample(started, min(REMEMBERED, number)), hosts)
                await anyio.sleep(STARTING_SECONDS / self._size)
            print("all nodes have started", file=sys.stderr, flush=True)
            await anyio.sleep(SETTLING_SECONDS)
            gc.freeze()
            before = {node: (node.host.traffic(), *node.announcements()) for node in self._nodes}
            began_cpu, began, asked = time.process_time(), anyio.current_time(), self._opening.asked
            tasks.start_soon(self._churn)
            tasks.start_soon(self._partition_twice)
            self._observing = True
            while (seconds := anyio.current_time() - began) < 60.0 * self._minutes:
                if time.monotonic() - began_all > 60.0 * self._bounds.real_minutes:
                    break
                await anyio.sleep(min(1.0, 60.0 * self._minutes - seconds))
            self.observed_seconds = seconds
            node_seconds = max(1e-9, seconds * self._size)
            self.cpu_seconds = (time.process_time() - began_cpu) / node_seconds
            self.opening_seconds = (self._opening.asked - asked) * self._opening.seconds_each / node_seconds
            stayed = [node for node in before if node in self._nodes and not node.is_sybil]
            for node in stayed:
                after, (traffic, accepted, refused) = node.host.traffic(), before[node]
                self.received_bytes += after.received_bytes - traffic.received_bytes
                self.sent_bytes += after.sent_bytes - traffic.sent_bytes
                self.accepted += node.announcements()[0] - accepted
                self.refused += node.announcements()[1] - refused
                self.node_seconds += seconds
                self.fetched += node.fetched
                self.averaged += node.averaged
            self.connections = sum(len(node.host.peers()) for node in self._nodes) / len(self._nodes)
            self.resident_bytes = resident_bytes(os.getpid()) or 0
            tasks.cancel_scope.cancel()

    async def _show_progress(self) -> None:
        while True:
            await anyio.sleep(PROGRESS_SECONDS)
            took = f"{anyio.current_time():.0f} s of virtual time took {time.process_time():.0f} s of the processor"
            print(f"{len(self._nodes)} of {self._size} nodes; {took}", file=sys.stderr, flush=True)

    async def _join_newly(self) -> None:
        known = self._random.sample(self._nodes, min(3, len(self._nodes)))
        await self._join(self._network.host(f"node-{self._made}"), [node.host for node in known], ())

    async def _join(self, host: SimulatedHost, known: list[SimulatedHost], heard: Sequence[SimulatedHost]) -> None:
        """Starts a node that remembers the addresses ``known`` and a heartbeat of all ``heard``."""
        name = f"node-{self._made}"
        is_sybil = host.peer_id in self._sybils or (not heard and self._random.random() < self._sybil_share)
        self._made += 1
        home = self._folder / name
        home.mkdir()
        addresses = [other.addresses()[0] for other in known if other is not host]
        (home / "peers.json").write_bytes(msgspec.json.encode(addresses))
        settings = ServiceSettings(
            home=str(home), swarm_name="scale", swarm_id=SWARM_ID, name=name, lan_discovery=False
        )
        service = SwarmService(
            host, host.key, settings, wall_clock=self.now_seconds, random=Random(name), measure=measured_at_once
        )
        for other in heard:
            if other is not host:
                self._remember(service, other)
        if heard:
            service._pacing._adverts._bucket.take(
                ADVERTS_AT_ONCE - self._random.random(), now_seconds=self.now_seconds()
            )
        node = Node(service, host, is_sybil, bool(heard), self.now_seconds())
        if not is_sybil:
            service.gossip.listen(functools.partial(self._on_announcement, node))
            self._watch_announcements_of(node)
        self._nodes.append(node)
        self._tasks.start_soon(self._live, node)
        await service.started.wait()

    def _remember(self, service: SwarmService, other: SimulatedHost) -> None:
        """Lets a node of the start have heard another, which has sent as much at once as it may if it is a sybil."""
        notes = service._table.of(other.peer_id)
        if other.peer_id not in self._said:
            claims = claims_of(other.addresses(), other.peer_id)
            self._said[other.peer_id] = msgspec.structs.replace(heartbeat("before"), addresses=claims)
        notes.heartbeat, notes.heartbeat_at_seconds = self._said[other.peer_id], self.now_seconds()
        if other.peer_id in self._sybils:
            may, limits, now_seconds = (
                allowance(self._size, HEARTBEAT_SECONDS),
                service.gossip._limits,
                self.now_seconds(),
            )
            for number in range(may.messages_a_slot + RESERVE):
                limits.refusal(
                    other.peer_id, number, 0, now_seconds,
                    signed_seconds=now_seconds, forwarder=other.peer_id, allowance=may,
                )  # fmt: skip

    async def _live(self, node: Node) -> None:
        with node.task, suppress(StarlingError):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(node.service.run)
                await node.service.started.wait()
                if not node.is_sybil:
                    tasks.start_soon(self._beat, node)
                    tasks.start_soon(self._average, node)
                await (self._attack if node.is_sybil else self._learn)(node)

    async def _beat(self, node: Node) -> None:
        if node.is_of_start:  # its regular heartbeats then come at any time
            random = Random(f"{node.host.peer_id} beats")
            await anyio.sleep(random.uniform(0.0, heartbeat_seconds(self._size, HEARTBEAT_SECONDS)))
        await node.service.answer(api.Beat(heartbeat(node.host.peer_id[-6:])))

    async def _learn(self, node: Node) -> None:
        random = Random(node.host.peer_id)
        await anyio.sleep(random.uniform(0.0, ROUND_SECONDS))
        for number in range(1 << 30):
            content = random.randbytes(GROUP_BYTES)
            blob = node.service.store.put(content)
            with suppress(StarlingError):
                await node.service.answer(api.Share(FAMILY, FAMILY, number, (group(blob, number),)))
                if number % ROUNDS_PER_FETCH == 0:
                    await self._fetch_one(node, random)
            await anyio.sleep(random.uniform(0.8, 1.2) * ROUND_SECONDS)

    async def _fetch_one(self, node: Node, random: Random) -> None:
        seen = await node.service.answer(api.AskSeenGroups(node.cursor, 1000))
        assert isinstance(seen, api.SeenGroups)
        if not seen.groups:
            return
        node.cursor = seen.groups[-1].cursor
        there = {other.host.peer_id for other in self._nodes if not other.is_sybil}
        honest = [group for group in seen.groups if group.peer in there]
        if not honest:
            return
        chosen = random.choice(honest)
        wanted = (api.Wanted(chosen.advert.blob, chosen.advert.size, (chosen.peer,)),)
        outcome = await node.service.answer(api.Fetch(wanted, FETCH_SECONDS))
        assert isinstance(outcome, api.FetchedList)
        is_here = outcome.fetched[0].is_here
        if self._observing and self.now_seconds() > self._disturbed_until_seconds:
            node.fetched[is_here] += 1
        if is_here:
            await node.service.answer(api.Judge(chosen.peer, chosen.advert.blob, api.Judgement.USED, ""))

    async def _average(self, node: Node) -> None:
        random = Random(f"{node.host.peer_id} averages")
        blob = weights(random.randrange(1 << 30))
        offer = Offer(FAMILY, LAYOUT.digest, ENCODING, 1, node.service.store.put(blob), len(blob))
        await anyio.sleep(random.uniform(0.0, AVERAGE_EVERY_SECONDS))
        while True:
            with suppress(StarlingError):
                reply = await node.service.answer(api.Average(offer, LAYOUT.tensors, PARTNER_SECONDS))
                if self._observing and self.now_seconds() > self._disturbed_until_seconds:
                    node.averaged[isinstance(reply, api.AverageReply) and reply.partner is not None] += 1
            await anyio.sleep(random.uniform(0.8, 1.2) * AVERAGE_EVERY_SECONDS)

    async def _attack(self, node: Node) -> None:
        random = Random(node.host.peer_id)
        for number in range(1 << 30):
            lie = RolloutAdvert(FAMILY, FAMILY, number, (group(random.randbytes(32), number),))
            with suppress(StarlingError):
                await node.service.gossip.announce(lie if number % 2 else heartbeat("sybil"))
            await anyio.sleep(SYBIL_SECONDS)

    async def _churn(self) -> None:
        between_seconds = 600.0 / (REPLACED_SHARE * self._size)
        while True:
            await anyio.sleep(self._random.expovariate(1.0 / between_seconds))
            node = self._nodes.pop(self._random.randrange(1, len(self._nodes)))
            if self._random.random() < 0.5:
                self._network.crash(node.host)
                node.task.cancel()
            else:
                node.service.leave("left")
            await self._join_newly()

    async def _partition_twice(self) -> None:
        lasting_seconds = min(PARTITION_SECONDS, 60.0 * self._minutes / 9)
        for share in PARTITION_AFTER:
            await anyio.sleep(60.0 * self._minutes * share - lasting_seconds / 2)
            hosts = [node.host for node in self._nodes]
            self._random.shuffle(hosts)
            self._disturbed_until_seconds = self.now_seconds() + lasting_seconds + AFTER_PARTITION_SECONDS
            self._network.partition(hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :])
            await anyio.sleep(lasting_seconds)
            self._network.heal()

    # What arrives

    def _is_observed(self, oldest_seconds: float, node: Node) -> bool:
        is_calm = self.now_seconds() > self._disturbed_until_seconds
        return self._observing and is_calm and node in self._nodes and node.is_there_since(oldest_seconds)

    def _watch_announcements_of(self, node: Node) -> None:
        announce = node.service.gossip.announce

        async def announced(body: Body) -> int:
            oldest_seconds = self.now_seconds() - PRESENT_SECONDS
            if self._is_observed(oldest_seconds, node):
                there = {n.host.peer_id for n in self._nodes if not n.is_sybil and n.is_there_since(oldest_seconds)}
                of = node.host.peer_id, node.service.gossip._sequence + 1
                self._sent[of] = Sent(there - {node.host.peer_id})
                self._tasks.start_soon(self._count, of)
            return await announce(body)

        node.service.gossip.announce = announced  # type: ignore[method-assign]

    def _on_announcement(self, node: Node, announcement: Announcement) -> None:
        sent = self._sent.get((announcement.sender, announcement.sequence))
        if sent is not None:
            sent.heard.add(node.host.peer_id)

    async def _count(self, of: tuple[str, int]) -> None:
        began = self.now_seconds()
        await anyio.sleep(DELIVERY_SECONDS)
        sent = self._sent.pop(of)
        if self._disturbed_until_seconds > began:
            return  # a partition began meanwhile
        expected = sent.expected & {node.host.peer_id for node in self._nodes}
        self.expected += len(expected)
        self.delivered += len(expected & sent.heard)


def heartbeat(name: str) -> Heartbeat:
    return Heartbeat(name, "scale", "wren", FAMILY, FAMILY, 1, 1, "learning", 100.0, 1, 1, ())


def weights(seed: int) -> bytes:
    values = 1.0 + 0.1 * np.random.default_rng(seed).standard_normal(500)
    return encode_dense(LAYOUT, [(values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)])


async def measured_at_once(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """Measures without a thread, for which virtual time would not wait."""
    return measure_difference(encoding, theirs, ours, layout)


def group(blob: bytes, seed: int) -> GroupAdvert:
    prompt = PromptRef("spell_backward", 1, bytes(16), seed)
    return GroupAdvert(blob, GROUP_BYTES, prompt, (1.0, 0.0, 0.0, 1.0), (5, 5, 6, 4), (-1.5, -0.5, -2.0, -1.0))


def measure(nodes: int, sybils: float, bounds: Bounds) -> list[Figure]:
    swarm_of: list[Swarm] = []
    opening, clock = SharedOpening(), MockClock(autojump_threshold=0)
    place = IN_MEMORY if IN_MEMORY.is_dir() else None

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="scale-", dir=place) as folder:
            swarm_of.append(Swarm(nodes, sybils, bounds, Path(folder), clock, opening))
            await swarm_of[0].run()

    opening.install()
    try:
        anyio.run(main, backend="trio", backend_options={"clock": clock})
    finally:
        opening.uninstall()
    found = swarm_of[0]
    fetches, searches = found.fetched.total(), found.averaged.total()
    name = f"{nodes} nodes: "
    of_a_node = max(1e-9, found.node_seconds)
    return [
        Figure(name + "observed, of virtual time", found.observed_seconds / 60.0, "min", "higher"),
        Figure(name + "receptions that were due", float(found.expected), "", "higher"),
        Figure(name + "delivered", 100 * found.delivered / max(1, found.expected), "%", "higher", ">= 99.9 %"),
        Figure(name + "accepted by a node", found.accepted / of_a_node, "announcements/s", "lower"),
        Figure(
            name + "refused by a node for their sender's rate", found.refused / of_a_node, "announcements/s", "lower"
        ),
        Figure(name + RECEIVED, found.received_bytes / of_a_node / 1e3, "kB/s", "lower"),
        Figure(name + "sent by a node", found.sent_bytes / of_a_node / 1e3, "kB/s", "lower"),
        Figure(name + "fetches that brought the blob", 100 * found.fetched[True] / max(1, fetches), "%", "higher"),
        Figure(name + "searches that ended in averaging", 100 * found.averaged[True] / max(1, searches), "%", "higher"),
        Figure(name + "fetches of groups", float(fetches), "", "higher"),
        Figure(name + "searches for a partner", float(searches), "", "higher"),
        Figure(name + "connections of a node", found.connections, "", "lower"),
        Figure(name + "memory of the process over nodes", found.resident_bytes / nodes / 1e6, "MB", "lower"),
        Figure(name + "processor time of a node, opening shared", 1e3 * found.cpu_seconds, "ms/s", "lower"),
        Figure(name + "opening what it receives, computed", 1e3 * found.opening_seconds, "ms/s", "lower"),
        Figure(name + "one opening", 1e6 * opening.seconds_each, "us", "lower"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000], help="sizes of the swarm")
    parser.add_argument("--minutes", type=float, default=10.0, help="of virtual time, after ten seconds of starting")
    parser.add_argument("--real-minutes", type=float, default=math.inf, help="of one size; a longer run is cut short")
    parser.add_argument("--sybils", type=float, default=SYBIL_SHARE, help="share of the nodes that are sybils")
    add_json_flag(parser)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    gc.set_threshold(*COLLECTING)
    figures: list[Figure] = []
    for nodes in arguments.nodes:
        figures += measure(nodes, arguments.sybils, Bounds(arguments.minutes, arguments.real_minutes))
    received = [figure.value for figure in figures if figure.name.endswith(RECEIVED)]
    if len(received) > 1:
        name = f"{RECEIVED}: {arguments.nodes[-1]} nodes over {arguments.nodes[0]}"
        figures.append(Figure(name, received[-1] / received[0], "x", "lower", "<= 1.2"))
    report("swarm_scale", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
