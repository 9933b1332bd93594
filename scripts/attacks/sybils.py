"""Hundreds of identities of one stranger against a small swarm, on the simulated network in virtual time.

``--honest`` nodes know each other before ``--sybils`` identities come. Each identity dials every honest node, shows
that it is in the swarm, dials again when it is dropped, answers who else is there with the other identities, and
serves nothing. Then ``--joiners`` honest nodes join, each with the address of one honest node, and after a minute each
fetches 1 MiB from every honest node. The same is played without the stranger first; figures are shares of that.
Honest nodes send heartbeats; identities do so with ``--announce`` only.

    python -m scripts.attacks.sybils [--sybils 300] [--networks 2] [--announce] [--dht] [--seed 1] [--json]

``--networks`` is the number of /24 networks among which the identities are spread; 0 puts everybody, honest nodes
included, into one, as on a local network. Honest nodes have a network each otherwise. With ``--dht`` the DHT is lost: a
joiner's look-ups find identities alone, others each time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from time import process_time
from typing import Any

import anyio

from protocol.errors import StarlingError
from protocol.messages import Announcement, Heartbeat
from scripts.attacks.common.members import in_virtual_time
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.announcements.gossip import Gossip
from swarm.announcements.pacing import PRESENT_SECONDS, heartbeat_seconds
from swarm.host import Stream
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.keeping import TRIAL_HEARTBEATS
from swarm.peers.peer_exchange import PeerExchange
from swarm.peers.peering import Peering

SWARM = bytes(range(16))
SERVE = "/attack/serve/1"
SERVED_BYTES = 1 << 20
CALM_SECONDS = 30.0
SIEGE_SECONDS = 60.0
JOIN_SECONDS = 60.0
REDIAL_SECONDS = 5.0
FETCH_SECONDS = 20.0
JOINED_PEERS = 2
SYBILS_FIRST_NETWORK = 100
SHORTEST_HEARTBEAT_SECONDS = 5.0
FAMILY = bytes(16)


@dataclass(frozen=True)
class Outcome:
    """Shares, 0 to 1: of connections among honest nodes, of joiners that joined, of their neighbours, of fetches."""

    kept: float
    joined: float  # connected to ``JOINED_PEERS`` honest nodes at least
    honest_neighbours: float
    fetched: float
    cpu_seconds: float
    dials: float  # of a joiner, in its first minute
    connections: float  # of a joiner, after it


class Presence:
    """Sends heartbeats, and knows who else does."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._heard: dict[str, float] = {}
        self._gossip = Gossip(host, host.key, SWARM, wall_clock=anyio.current_time)
        self._gossip.listen(self._on_announcement)

    def _on_announcement(self, announcement: Announcement) -> None:
        self._heard[announcement.sender] = anyio.current_time()

    def is_present(self, peer: str) -> bool:
        return anyio.current_time() - self._heard.get(peer, -PRESENT_SECONDS) < PRESENT_SECONDS

    def heartbeat_seconds(self) -> float:
        return heartbeat_seconds(1 + sum(map(self.is_present, self._heard)), SHORTEST_HEARTBEAT_SECONDS)

    async def run(self) -> None:
        await self._gossip.start()
        while True:
            with suppress(StarlingError):
                await self._gossip.announce(
                    Heartbeat("node", "attack", "wren", FAMILY, FAMILY, 1, 1, "learning", 1.0, 1, 1, ())
                )
            await anyio.sleep(self.heartbeat_seconds())


@asynccontextmanager
async def node(host: SimulatedHost, configured: Sequence[str]) -> Any:
    presence = Presence(host)

    async def serve(stream: Stream) -> None:
        await stream.receive(1)
        await stream.send(bytes(SERVED_BYTES))

    peering = Peering(
        host, SWARM, configured=configured, remembered=None, random=Random(host.peer_id),
        is_of_use=presence.is_present, trial_seconds=lambda: TRIAL_HEARTBEATS * presence.heartbeat_seconds(),
    )  # fmt: skip
    host.handle(SERVE, serve)
    async with host.run(), anyio.create_task_group() as tasks:
        tasks.start_soon(peering.run)
        tasks.start_soon(presence.run)
        yield peering
        tasks.cancel_scope.cancel()


async def sybil(
    host: SimulatedHost, honest: Sequence[SimulatedHost], others: Sequence[str], random: Random, announces: bool
) -> None:
    exchange = PeerExchange(
        host, SWARM, on_addresses=lambda *_: None, addresses_for=lambda *_: random.sample(others, min(64, len(others)))
    )
    await anyio.sleep(random.uniform(0, REDIAL_SECONDS))
    presence = Presence(host)
    async with host.run(), anyio.create_task_group() as tasks:
        if announces:
            tasks.start_soon(presence.run)
        while True:
            for victim in honest:
                if victim.peer_id not in host.peers():
                    with suppress(StarlingError):
                        await host.connect(victim.addresses()[0], deadline_seconds=5.0)
                        await exchange.ask(victim.peer_id)
            await anyio.sleep(random.uniform(0.5, 1.5) * REDIAL_SECONDS)


def count_dials(host: SimulatedHost) -> list[str]:
    """Returns a list to which each address is added that the host dials from now on."""
    dialled: list[str] = []
    connect = host.connect

    async def counted(address: str, *, deadline_seconds: float) -> str:
        dialled.append(address)
        return await connect(address, deadline_seconds=deadline_seconds)

    host.connect = counted  # type: ignore[method-assign]
    return dialled


def capture_lookups(host: SimulatedHost, addresses: Sequence[str], random: Random) -> None:
    """From now on the host's look-ups in the DHT find none but ``addresses``."""

    async def captured(key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[str]:
        return random.sample(addresses, min(limit, len(addresses)))

    host.find_providers = captured  # type: ignore[method-assign]


async def fetch(host: SimulatedHost, peering: Peering, peer: str) -> bool:
    with suppress(StarlingError), anyio.move_on_after(FETCH_SECONDS):
        await peering.reach(peer, FETCH_SECONDS)
        stream = await host.open_stream(peer, SERVE, deadline_seconds=FETCH_SECONDS)
        await stream.send(b"?")
        received = 0
        while piece := await stream.receive(1 << 16):
            received += len(piece)
        return received == SERVED_BYTES
    return False


async def play(sybils: int, arguments: argparse.Namespace) -> Outcome:
    network, random = SimulatedNetwork(seed=arguments.seed), Random(arguments.seed)
    apart = arguments.networks > 0
    hosts = [network.host(f"honest {n}", place=256 * n + 1 if apart else None) for n in range(arguments.honest)]
    joiners = [
        network.host(f"joiner {n}", place=256 * (arguments.honest + n) + 1 if apart else None)
        for n in range(arguments.joiners)
    ]
    places = [256 * (SYBILS_FIRST_NETWORK + n % max(1, arguments.networks)) + n % 256 for n in range(sybils)]
    enemies = [network.host(f"sybil {n}", place=place if apart else None) for n, place in enumerate(places)]
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        for host in hosts:
            await stack.enter_async_context(node(host, [] if host is hosts[0] else hosts[0].addresses()))
        await anyio.sleep(CALM_SECONDS)
        began = process_time()
        addresses = [enemy.addresses()[0] for enemy in enemies]
        for enemy in enemies:
            tasks.start_soon(sybil, enemy, hosts, addresses, random, arguments.announce)
        await anyio.sleep(SIEGE_SECONDS)
        pairs = [(one, other) for one in hosts for other in hosts if one is not other]
        kept = sum(other.peer_id in one.peers() for one, other in pairs) / len(pairs)
        peerings = []
        for joiner in joiners:
            if arguments.dht and addresses:
                capture_lookups(joiner, addresses, random)
            known = random.choice(hosts).addresses()
            peerings.append(await stack.enter_async_context(node(joiner, known)))
        dials = [count_dials(joiner) for joiner in joiners]
        await anyio.sleep(JOIN_SECONDS)
        cpu_seconds = process_time() - began
        honest = {host.peer_id for host in hosts}
        joined = sum(len(honest & set(joiner.peers())) >= JOINED_PEERS for joiner in joiners) / len(joiners)
        honest |= {joiner.peer_id for joiner in joiners}
        neighbours = [peer in honest for joiner in joiners for peer in joiner.peers()]
        made = sum(map(len, dials)) / len(joiners)
        connections = len(neighbours) / len(joiners)
        fetched = [
            await fetch(joiner, peering, host.peer_id)
            for joiner, peering in zip(joiners, peerings, strict=True)
            for host in hosts
        ]
        honest_neighbours = sum(neighbours) / max(1, len(neighbours))
        return Outcome(kept, joined, honest_neighbours, sum(fetched) / len(fetched), cpu_seconds, made, connections)
    raise AssertionError("unreachable")


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--sybils", type=int, default=300)
    parser.add_argument("--networks", type=int, default=2)
    parser.add_argument("--honest", type=int, default=8)
    parser.add_argument("--joiners", type=int, default=10)
    parser.add_argument("--announce", action="store_true", help="the identities send heartbeats as honest nodes do")
    parser.add_argument("--dht", action="store_true", help="look-ups of joiners find identities alone")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    calm, siege = (in_virtual_time(play, sybils, arguments) for sybils in (0, arguments.sybils))
    figures = [
        Figure("connections among honest nodes", siege.kept / calm.kept, "of calm", "higher", ">= .9"),
        Figure("joiners with two honest nodes or more", siege.joined / calm.joined, "of calm", "higher", ">= .9"),
        Figure("honest among the neighbours of joiners", siege.honest_neighbours, "share", "higher"),
        Figure("joiners' fetches from honest nodes", siege.fetched / calm.fetched, "of calm", "higher", ">= .9"),
        Figure("dials of a joiner in its first minute, calm", calm.dials, "", "lower"),
        Figure("dials of a joiner in its first minute, among the identities", siege.dials, "", "lower", "<= 40"),
        Figure("connections of a joiner after it, calm", calm.connections, "", "lower"),
        Figure("connections of a joiner after it, among the identities", siege.connections, "", "lower"),
        Figure("CPU of everybody under siege", siege.cpu_seconds, "s", "lower"),
    ]
    kind = ("sybils that announce" if arguments.announce else "sybils") + (" and hold the DHT" if arguments.dht else "")
    report(f"{arguments.sybils} {kind} from {arguments.networks} networks", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
