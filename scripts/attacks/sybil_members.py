"""Whole members of a swarm beside hundreds of identities of one stranger: from joining to averaging.

    python -m scripts.attacks.sybil_members [--sybils 300] [--minutes 3] [--seed 1] [--json]

``--members`` whole members on the simulated network share groups of rollouts, fetch each other's, judge them as used
and average their weights. Then ``--sybils`` identities come, from ``--networks`` /24 networks. Each dials every member,
dials again when it is dropped, answers who else is there with other identities, says in its heartbeats that it is of
the members' family, takes gossip and forwards none, proposes to average, accepts every proposal and never says
``have``. From then on look-ups in the DHT find identities alone. A minute later ``--joiners`` honest members join, each
with the address of one member. The same is played without the stranger first; figures are shares of that. Virtual time.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import process_time
from typing import Final

import anyio
from anyio.abc import TaskGroup

from protocol.errors import ProtocolError, StarlingError, TransportError
from protocol.meeting_points import gossip_topic
from protocol.streams.averaging_messages import AVERAGING_PROTOCOL, Decline, Have, Offer, Propose
from protocol.weights.dense_weights import ENCODING
from scripts.attacks.common.members import accepting, average_for_ever, in_virtual_time, now_seconds
from scripts.attacks.sybils import SYBILS_FIRST_NETWORK, capture_lookups
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.shared_opening import SharedOpening
from scripts.bench.scale.activity import LAYOUT, PARTNER_SECONDS, fetch_one, group
from scripts.bench.scale.swarm_node import FAMILY, HEARTBEAT_SECONDS, SWARM_ID, heartbeat, new_service
from swarm import api
from swarm.announcements.gossip import Gossip
from swarm.announcements.pacing import heartbeat_seconds
from swarm.averaging.weight_exchange import Conversation
from swarm.host import GossipVerdict
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.peer_exchange import PeerExchange
from swarm.service import SwarmService

SWARM: Final = bytes.fromhex(SWARM_ID)
MESH_DEGREE: Final = 4  # as on our libp2p host
CALM_SECONDS: Final = 120.0  # before the identities come
BEFORE_JOINING_SECONDS: Final = 60.0
ROUND_SECONDS: Final = 10.0
FETCH_SECONDS: Final = 20.0
REDIAL_SECONDS: Final = 10.0
PROPOSE_SECONDS: Final = 10.0
NAMED_AT_ONCE: Final = 64


@dataclass
class Member:
    """What an honest member reached since ``began_seconds``: when it joined, or when the identities came."""

    service: SwarmService
    host: SimulatedHost
    began_seconds: float
    fetched: int = 0
    missed: int = 0
    without_news: int = 0  # rounds in which no honest member had announced a group since the last one
    commits: int = 0
    first_group_seconds: float = math.inf  # after it began
    first_commit_seconds: float = math.inf

    async def live(self, honest: Sequence[Member]) -> None:
        """Runs until cancelled; fetches groups of ``honest``."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.service.run)
            await self.service.started.wait()
            await self.service.answer(api.Beat(heartbeat(self.peer[-6:])))
            tasks.start_soon(self._share)
            tasks.start_soon(self._fetch, honest)
            tasks.start_soon(average_for_ever, self.service, Random(f"{self.peer} averages"), self._note_commit)

    @property
    def peer(self) -> str:
        return self.host.peer_id

    @property
    def age_seconds(self) -> float:
        return anyio.current_time() - self.began_seconds

    def count_anew(self) -> None:
        self.began_seconds = anyio.current_time()
        self.fetched = self.missed = self.without_news = self.commits = 0

    async def _share(self) -> None:
        random = Random(f"{self.peer} shares")
        for number in range(1 << 30):
            blob = self.service.store.put(random.randbytes(2000))
            with suppress(StarlingError):
                await self.service.answer(api.Share(FAMILY, FAMILY, number, (group(blob, number),)))
            await anyio.sleep(random.uniform(0.8, 1.2) * ROUND_SECONDS)

    async def _fetch(self, honest: Sequence[Member]) -> None:
        random, cursor = Random(f"{self.peer} fetches"), 0
        while True:
            await anyio.sleep(random.uniform(0.8, 1.2) * ROUND_SECONDS)
            cursor, is_here = await fetch_one(
                self.service, cursor, lambda: {member.peer for member in honest}, random, FETCH_SECONDS
            )
            if is_here is None:
                self.without_news += 1
            elif not is_here:
                self.missed += 1
            else:
                self.fetched += 1
                self.first_group_seconds = min(self.first_group_seconds, self.age_seconds)

    def _note_commit(self) -> None:
        self.commits += 1
        self.first_commit_seconds = min(self.first_commit_seconds, self.age_seconds)


class Identity:
    """One of the stranger's. ``victims`` are the honest members, ``others`` the addresses of its other identities."""

    def __init__(
        self, host: SimulatedHost, victims: Sequence[Member], others: Sequence[str], nodes: int, random: Random
    ) -> None:
        self._host, self._victims, self._random = host, victims, random
        self._beats_seconds = heartbeat_seconds(nodes, HEARTBEAT_SECONDS)
        self._gossip = Gossip(host, host.key, SWARM, wall_clock=now_seconds)
        self._exchange = PeerExchange(
            host, SWARM,
            on_addresses=lambda *_: None,
            addresses_for=lambda *_: random.sample(others, min(NAMED_AT_ONCE, len(others))),
        )  # fmt: skip
        self._offer = Offer(FAMILY, LAYOUT.digest, ENCODING, 1, random.randbytes(32), 1000)

    async def run(self) -> None:
        await anyio.sleep(self._random.uniform(0.0, REDIAL_SECONDS))
        async with self._host.run(), anyio.create_task_group() as tasks:
            await self._host.subscribe(gossip_topic(SWARM), lambda *_: GossipVerdict.IGNORE, lambda *_: None)
            self._host.handle(AVERAGING_PROTOCOL, accepting(self._offer))
            tasks.start_soon(self._beat)
            tasks.start_soon(self._propose)
            while True:
                for victim in self._victims:
                    await self._dial(victim)
                await anyio.sleep(self._random.uniform(0.5, 1.5) * REDIAL_SECONDS)

    async def _dial(self, victim: Member) -> None:
        if victim.peer not in self._host.peers():
            with suppress(StarlingError):
                await self._host.connect(victim.host.addresses()[0], deadline_seconds=5.0)
                await self._exchange.ask(victim.peer)

    async def _beat(self) -> None:
        while True:
            await anyio.sleep(self._random.uniform(0.5, 1.5) * self._beats_seconds)
            with suppress(StarlingError):
                await self._gossip.announce(heartbeat("node"))

    async def _propose(self) -> None:
        """Proposes to one member after the other, and holds each conversation until the member gives up."""
        while True:
            await anyio.sleep(self._random.uniform(0.5, 1.5) * PROPOSE_SECONDS)
            peers = self._host.peers()
            if not peers:
                continue
            with suppress(TransportError, ProtocolError):
                peer = self._random.choice(sorted(peers))
                conversation = Conversation(
                    await self._host.open_stream(peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
                )
                await conversation.send(Propose(self._random.randbytes(16), self._offer), 5.0)
                with suppress(TransportError, ProtocolError):
                    await conversation.receive(PARTNER_SECONDS, Have, Decline)
                await conversation.stream.reset()


@dataclass
class World:
    """One swarm in one folder. ``honest`` are its members in the order in which they came."""

    folder: Path
    tasks: TaskGroup
    network: SimulatedNetwork
    random: Random
    honest: list[Member] = field(default_factory=list)
    found: list[str] = field(default_factory=list)  # by look-ups in the DHT, once the identities are here

    async def join(self, known: Sequence[Member]) -> None:
        name = f"member-{len(self.honest)}"
        host = self.network.host(name, place=256 * len(self.honest) + 1)
        if self.found:
            capture_lookups(host, self.found, self.random)
        service = new_service(host, name, self.folder / name, [each.host for each in known], now_seconds)
        member = Member(service, host, anyio.current_time())
        self.honest.append(member)
        self.tasks.start_soon(member.live, self.honest)
        await service.started.wait()

    def besiege(self, sybils: int, networks: int) -> None:
        places = [256 * (SYBILS_FIRST_NETWORK + n % networks) + n // networks % 256 for n in range(sybils)]
        hosts = [self.network.host(f"identity-{n}", place=place) for n, place in enumerate(places)]
        self.found = [host.addresses()[0] for host in hosts]
        for member in self.honest if hosts else ():
            capture_lookups(member.host, self.found, self.random)
        nodes = sybils + len(self.honest)
        for host in hosts:
            self.tasks.start_soon(Identity(host, self.honest, self.found, nodes, self.random).run)


@dataclass(frozen=True)
class Outcome:
    """Of members, and of those that joined among the identities: of fetches the share that brought their blob, commits
    an hour and member; of members the share of rounds with new groups; of joiners the share that fetched a group and
    committed, and the mean time until then."""

    fetched: float
    news: float
    commits: float
    joiners_fetched: float
    joiners_news: float
    joiners_commits: float
    arrived: float
    first_group_seconds: float
    first_commit_seconds: float
    cpu_seconds: float


async def play(folder: Path, sybils: int, options: argparse.Namespace) -> Outcome:
    began_cpu_seconds = process_time()
    async with anyio.create_task_group() as tasks:
        network = SimulatedNetwork(options.seed, mesh_degree=MESH_DEGREE)
        world = World(folder, tasks, network, Random(options.seed))
        for _ in range(options.members):
            await world.join(world.honest[:1])
        await anyio.sleep(CALM_SECONDS)
        members = list(world.honest)
        for member in members:
            member.count_anew()
        world.besiege(sybils, options.networks)
        await anyio.sleep(BEFORE_JOINING_SECONDS)
        for _ in range(options.joiners):
            await world.join([world.random.choice(members)])
        await anyio.sleep(60.0 * options.minutes)
        joiners = world.honest[len(members) :]
        outcome = Outcome(
            fetched_share(members),
            news_share(members),
            commits_an_hour(members),
            fetched_share(joiners),
            news_share(joiners),
            commits_an_hour(joiners),
            mean([each.first_group_seconds < math.inf and each.commits > 0 for each in joiners]),
            mean([min(each.first_group_seconds, each.age_seconds) for each in joiners]),
            mean([min(each.first_commit_seconds, each.age_seconds) for each in joiners]),
            process_time() - began_cpu_seconds,
        )
        tasks.cancel_scope.cancel()
    return outcome


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def fetched_share(members: Sequence[Member]) -> float:
    fetched, missed = sum(each.fetched for each in members), sum(each.missed for each in members)
    return fetched / max(1, fetched + missed)


def news_share(members: Sequence[Member]) -> float:
    without = sum(each.without_news for each in members)
    return 1.0 - without / max(1, without + sum(each.fetched + each.missed for each in members))


def commits_an_hour(members: Sequence[Member]) -> float:
    return mean([3600.0 * each.commits / each.age_seconds for each in members])


def played(sybils: int, options: argparse.Namespace) -> Outcome:
    opening = SharedOpening()
    opening.install()
    try:
        with tempfile.TemporaryDirectory(prefix="sybil-members-") as folder:
            return in_virtual_time(play, Path(folder), sybils, options)
    finally:
        opening.uninstall()


def figures_of(calm: Outcome, siege: Outcome) -> list[Figure]:
    bar = ">= .9"
    return [
        Figure("members: fetches that brought their blob", siege.fetched / calm.fetched, "of calm", "higher", bar),
        Figure("members: rounds with new groups", siege.news / calm.news, "of calm", "higher", bar),
        Figure("members: commits", siege.commits / calm.commits, "of calm", "higher", bar),
        Figure("members: commits an hour and member, calm", calm.commits, "commits", "higher"),
        Figure("joiners that fetched and averaged", siege.arrived / calm.arrived, "of calm", "higher", bar),
        Figure("joiners: fetches", siege.joiners_fetched / calm.joiners_fetched, "of calm", "higher", bar),
        Figure("joiners: rounds with new groups", siege.joiners_news / calm.joiners_news, "of calm", "higher", bar),
        Figure("joiners: commits", siege.joiners_commits / calm.joiners_commits, "of calm", "higher", bar),
        Figure("joiners: seconds until the first group, calm", calm.first_group_seconds, "s", "lower"),
        Figure("joiners: seconds until the first group, besieged", siege.first_group_seconds, "s", "lower"),
        Figure("joiners: seconds until the first commit, calm", calm.first_commit_seconds, "s", "lower"),
        Figure("joiners: seconds until the first commit, besieged", siege.first_commit_seconds, "s", "lower"),
        Figure("CPU of everybody, besieged", siege.cpu_seconds, "s", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--sybils", type=int, default=300)
    parser.add_argument("--networks", type=int, default=2, help="/24 networks from which the identities come")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--joiners", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=3.0, help="of virtual time, from the first joiner on")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    calm, siege = played(0, options), played(options.sybils, options)
    report(f"{options.sybils} identities beside members", figures_of(calm, siege), as_json=options.json)


if __name__ == "__main__":
    main()
