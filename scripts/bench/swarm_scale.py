"""A whole swarm of simulated nodes under churn: what arrives, what a node pays, and whether that grows with the swarm.

    python -m scripts.bench.swarm_scale [--nodes 100 1000] [--minutes 10] [--cpu-minutes N] [--json]

Every node is the swarm's own code (``SwarmService``) on a simulated host in virtual time, a random learner beside it:
each round of ten seconds it shares a group, fetches one of another node and judges it. Thirty percent of the nodes are
replaced every ten minutes, half of them without a goodbye. Twice the network falls into two halves, for a minute or a
ninth of a short run. One node in ten is a sybil, which announces as much as it may and serves nothing. Counted once
all have joined, which takes 90 s:

- delivered: of all announcements by honest nodes, the share of honest nodes that accepted them within 15 s, of those
  that were there for 30 s before and 15 s after, outside of partitions and of the 45 s after one;
- bytes received and sent by a node, a second;
- processor time of the whole simulation, a node and a second. Each announcement is opened (signature, structure, types)
  once for all nodes that received it; what it would cost if each node had opened it, which is what a real node does,
  is computed from the measured cost of one opening and printed beside it;
- fetches that brought their blob, of groups of honest nodes that are still there.

The simulated host floods gossip over all connections, where GossipSub would use a mesh of eight: compare sizes, not
bytes with those of real sockets.
"""

from __future__ import annotations

import argparse
import functools
import logging
import math
import sys
import tempfile
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import anyio
from anyio.abc import TaskGroup
from trio.testing import MockClock

from protocol import wire
from protocol.errors import StarlingError
from protocol.messages import Announcement, Body, GroupAdvert, Heartbeat, PromptRef, RolloutAdvert
from scripts.bench.common.reporting import Figure, add_json_flag, report
from swarm import api
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.service import SwarmService
from swarm.settings import ServiceSettings

EPOCH: Final = 1_700_000_000.0
JOINING_SECONDS: Final = 90.0
PROGRESS_SECONDS: Final = 10.0  # of virtual time
ROUND_SECONDS: Final = 10.0
REPLACED_SHARE: Final = 0.3  # of the nodes, in ten minutes
SYBIL_SHARE: Final = 0.1
SYBIL_SECONDS: Final = 1.0  # between two announcements of a sybil
PARTITION_SECONDS: Final = 60.0  # at most; a ninth of the time
AFTER_PARTITION_SECONDS: Final = 45.0
PRESENT_SECONDS: Final = 30.0  # that a node is there before an announcement which it must hear
DELIVERY_SECONDS: Final = 15.0
GROUP_BYTES: Final = 2000
OPENED_REMEMBERED: Final = 16384
RECEIVED: Final = "received by a node"
FAMILY: Final = bytes([1]) * 16
SWARM_ID: Final = "5c" * 16


class SharedOpening:
    """Opens each announcement once for all nodes, and measures what one opening takes.

    All nodes have one clock and one swarm, so that the result is the same for each of them.
    """

    def __init__(self) -> None:
        self._open_envelope, self._open_body = wire.open_envelope, wire.open_body
        self._envelopes: OrderedDict[bytes, tuple[wire.Envelope, Announcement]] = OrderedDict()
        self._bodies: dict[bytes, Announcement] = {}
        self.asked, self.opened, self.cpu_seconds = 0, 0, 0.0

    def install(self) -> None:
        wire.open_envelope = self.envelope
        wire.open_body = self.body

    def uninstall(self) -> None:
        wire.open_envelope, wire.open_body = self._open_envelope, self._open_body

    @property
    def seconds_each(self) -> float:
        return self.cpu_seconds / max(1, self.opened)

    def envelope(self, raw: bytes, *, swarm_id: bytes, now_seconds: float) -> wire.Envelope:
        self.asked += 1
        known = self._envelopes.get(raw)
        if known is None:
            began = time.process_time()
            envelope = self._open_envelope(raw, swarm_id=swarm_id, now_seconds=now_seconds)
            known = self._envelopes[raw] = envelope, self._open_body(envelope)
            self.cpu_seconds += time.process_time() - began
            self.opened += 1
            self._bodies[envelope.payload] = known[1]
            if len(self._envelopes) > OPENED_REMEMBERED:
                _, (oldest, _) = self._envelopes.popitem(last=False)
                del self._bodies[oldest.payload]
        return known[0]

    def body(self, envelope: wire.Envelope) -> Announcement:
        known = self._bodies.get(envelope.payload)
        return known if known is not None else self._open_body(envelope)


@dataclass(eq=False)
class Node:
    service: SwarmService
    host: SimulatedHost
    is_sybil: bool
    began_seconds: float
    task: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    fetched: Counter[bool] = field(default_factory=Counter)
    cursor: int = 0


@dataclass
class Sent:
    """An announcement on its way."""

    expected: set[str]  # the honest peers that are to hear it
    heard: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Bounds:
    """When the observation ends: after so much virtual time, or once all of the run took so much processor time."""

    minutes: float
    cpu_minutes: float


class Swarm:
    def __init__(self, nodes: int, bounds: Bounds, folder: Path, clock: MockClock, opening: SharedOpening) -> None:
        self._bounds, self._clock, self._opening = bounds, clock, opening
        self._size, self._minutes, self._folder = nodes, bounds.minutes, folder
        self._random = Random(nodes)
        self._network = SimulatedNetwork(seed=nodes)
        self._nodes: list[Node] = []
        self._made = 0
        self._tasks: TaskGroup
        self._sent: dict[tuple[str, int], Sent] = {}
        self._disturbed_until_seconds = 0.0
        self._observing = False
        self.expected, self.delivered = 0, 0
        self.fetched: Counter[bool] = Counter()
        self.received_bytes, self.sent_bytes, self.node_seconds = 0, 0, 0.0
        self.accepted = 0
        self.cpu_seconds, self.opening_seconds = 0.0, 0.0
        self.observed_seconds = 0.0

    def now_seconds(self) -> float:
        return EPOCH + self._clock.current_time()

    async def run(self) -> None:
        began_all = time.process_time()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._show_progress)
            for _ in range(self._size):
                await self._join()
                await anyio.sleep(JOINING_SECONDS / 2 / self._size)
            await anyio.sleep(JOINING_SECONDS / 2)
            before = {node: (node.host.traffic(), node.service.gossip.accepted.total()) for node in self._nodes}
            began_cpu, began, asked = time.process_time(), anyio.current_time(), self._opening.asked
            tasks.start_soon(self._churn)
            tasks.start_soon(self._partition_twice)
            self._observing = True
            while (seconds := anyio.current_time() - began) < 60.0 * self._minutes:
                if time.process_time() - began_all > 60.0 * self._bounds.cpu_minutes:
                    break
                await anyio.sleep(min(1.0, 60.0 * self._minutes - seconds))
            self.observed_seconds = seconds
            node_seconds = max(1e-9, seconds * self._size)
            self.cpu_seconds = (time.process_time() - began_cpu) / node_seconds
            self.opening_seconds = (self._opening.asked - asked) * self._opening.seconds_each / node_seconds
            stayed = [node for node in before if node in self._nodes and not node.is_sybil]
            for node in stayed:
                after, (traffic, accepted) = node.host.traffic(), before[node]
                self.received_bytes += after.received_bytes - traffic.received_bytes
                self.sent_bytes += after.sent_bytes - traffic.sent_bytes
                self.accepted += node.service.gossip.accepted.total() - accepted
                self.node_seconds += seconds
                self.fetched += node.fetched
            tasks.cancel_scope.cancel()

    async def _show_progress(self) -> None:
        while True:
            await anyio.sleep(PROGRESS_SECONDS)
            took = f"{anyio.current_time():.0f} s of virtual time took {time.process_time():.0f} s of the processor"
            print(f"{len(self._nodes)} of {self._size} nodes; {took}", file=sys.stderr, flush=True)

    async def _join(self) -> None:
        name = f"node-{self._made}"
        is_sybil = self._made > 0 and self._random.random() < SYBIL_SHARE
        self._made += 1
        home = self._folder / name
        home.mkdir()
        known = self._random.sample(self._nodes, min(3, len(self._nodes)))
        settings = ServiceSettings(
            home=str(home), swarm_name="scale", swarm_id=SWARM_ID, name=name, lan_discovery=False,
            peers=tuple(node.host.addresses()[0] for node in known),
        )  # fmt: skip
        host = self._network.host(name)
        service = SwarmService(host, host.key, settings, wall_clock=self.now_seconds, random=Random(name))
        node = Node(service, host, is_sybil, self.now_seconds())
        if not is_sybil:
            service.gossip.listen(functools.partial(self._on_announcement, node))
            self._watch_announcements_of(node)
        self._nodes.append(node)
        self._tasks.start_soon(self._live, node)
        await service.started.wait()

    async def _live(self, node: Node) -> None:
        with node.task, suppress(StarlingError):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(node.service.run)
                await node.service.started.wait()
                await (self._attack if node.is_sybil else self._learn)(node)

    async def _learn(self, node: Node) -> None:
        random = Random(node.host.peer_id)
        await node.service.answer(api.Beat(heartbeat(node.host.peer_id[-6:])))
        await anyio.sleep(random.uniform(0.0, ROUND_SECONDS))
        for number in range(1 << 30):
            content = random.randbytes(GROUP_BYTES)
            blob = node.service.store.put(content)
            with suppress(StarlingError):
                await node.service.answer(api.Share(FAMILY, FAMILY, number, (group(blob, number),)))
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
        outcome = await node.service.answer(api.Fetch(wanted, ROUND_SECONDS))
        assert isinstance(outcome, api.FetchedList)
        is_here = outcome.fetched[0].is_here
        if self.now_seconds() > self._disturbed_until_seconds:
            node.fetched[is_here] += 1
        if is_here:
            await node.service.answer(api.Judge(chosen.peer, chosen.advert.blob, api.Judgement.USED, ""))

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
            await self._join()

    async def _partition_twice(self) -> None:
        lasting_seconds = min(PARTITION_SECONDS, 60.0 * self._minutes / 9)
        for _ in range(2):
            await anyio.sleep(60.0 * self._minutes / 3 - lasting_seconds / 2)
            hosts = [node.host for node in self._nodes]
            self._random.shuffle(hosts)
            self._disturbed_until_seconds = self.now_seconds() + lasting_seconds + AFTER_PARTITION_SECONDS
            self._network.partition(hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :])
            await anyio.sleep(lasting_seconds)
            self._network.heal()

    # What arrives

    def _is_observed(self, oldest_seconds: float, node: Node) -> bool:
        is_calm = self.now_seconds() > self._disturbed_until_seconds
        return self._observing and is_calm and node in self._nodes and node.began_seconds < oldest_seconds

    def _watch_announcements_of(self, node: Node) -> None:
        announce = node.service.gossip.announce

        async def announced(body: Body) -> int:
            oldest_seconds = self.now_seconds() - PRESENT_SECONDS
            if self._is_observed(oldest_seconds, node):
                there = {n.host.peer_id for n in self._nodes if not n.is_sybil and n.began_seconds < oldest_seconds}
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


def group(blob: bytes, seed: int) -> GroupAdvert:
    prompt = PromptRef("spell_backward", 1, bytes(16), seed)
    return GroupAdvert(blob, GROUP_BYTES, prompt, (1.0, 0.0, 0.0, 1.0), (5, 5, 6, 4), (-1.5, -0.5, -2.0, -1.0))


def measure(nodes: int, bounds: Bounds) -> list[Figure]:
    swarm_of: list[Swarm] = []
    opening, clock = SharedOpening(), MockClock(autojump_threshold=0)

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            swarm_of.append(Swarm(nodes, bounds, Path(folder), clock, opening))
            await swarm_of[0].run()

    opening.install()
    try:
        anyio.run(main, backend="trio", backend_options={"clock": clock})
    finally:
        opening.uninstall()
    found = swarm_of[0]
    fetches = found.fetched.total()
    name = f"{nodes} nodes: "
    of_a_node = max(1e-9, found.node_seconds)
    return [
        Figure(name + "observed, of virtual time", found.observed_seconds / 60.0, "min", "higher"),
        Figure(name + "receptions that were due", float(found.expected), "", "higher"),
        Figure(name + "delivered", 100 * found.delivered / max(1, found.expected), "%", "higher", ">= 99.9 %"),
        Figure(name + "accepted by a node", found.accepted / of_a_node, "announcements/s", "lower"),
        Figure(name + RECEIVED, found.received_bytes / of_a_node / 1e3, "kB/s", "lower"),
        Figure(name + "sent by a node", found.sent_bytes / of_a_node / 1e3, "kB/s", "lower"),
        Figure(name + "fetches that brought the blob", 100 * found.fetched[True] / max(1, fetches), "%", "higher"),
        Figure(name + "processor time of a node, opening shared", 1e3 * found.cpu_seconds, "ms/s", "lower"),
        Figure(name + "opening what it receives, computed", 1e3 * found.opening_seconds, "ms/s", "lower"),
        Figure(name + "one opening", 1e6 * opening.seconds_each, "us", "lower"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000], help="sizes of the swarm")
    parser.add_argument("--minutes", type=float, default=10.0, help="of virtual time, after two of joining")
    parser.add_argument("--cpu-minutes", type=float, default=math.inf, help="of one size; a longer run is cut short")
    add_json_flag(parser)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    figures: list[Figure] = []
    for nodes in arguments.nodes:
        figures += measure(nodes, Bounds(arguments.minutes, arguments.cpu_minutes))
    received = [figure.value for figure in figures if figure.name.endswith(RECEIVED)]
    if len(received) > 1:
        name = f"{RECEIVED}: {arguments.nodes[-1]} nodes over {arguments.nodes[0]}"
        figures.append(Figure(name, received[-1] / received[0], "x", "lower", "<= 1.2"))
    report("swarm_scale", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
