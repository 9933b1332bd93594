"""Hundreds of identities of one stranger against a small swarm, on the simulated network in virtual time.

``--honest`` nodes know each other before ``--sybils`` identities come. Each identity dials every honest node, shows
that it is in the swarm, dials again when it is dropped, answers who else is there with the other identities, and
serves nothing. Then ``--joiners`` honest nodes join, each with the address of one honest node, and after a minute each
fetches 1 MiB from every honest node. The same is played without the stranger first; figures are shares of that.

    python -m scripts.attacks.sybils [--sybils 300] [--networks 2] [--seed 1] [--json]

``--networks`` is the number of /24 networks among which the identities are spread; 0 puts everybody, honest nodes
included, into one, as on a local network. Honest nodes have a network each otherwise.
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
import trio
import trio.testing

from protocol.errors import StarlingError
from scripts.bench.common.reporting import Figure, add_json_flag, report
from swarm.host import Stream
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
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


@dataclass(frozen=True)
class Outcome:
    """Shares, 0 to 1: of connections among honest nodes, of joiners that joined, of their neighbours, of fetches."""

    kept: float
    joined: float  # connected to ``JOINED_PEERS`` honest nodes at least
    honest_neighbours: float
    fetched: float
    cpu_seconds: float


@asynccontextmanager
async def node(host: SimulatedHost, configured: Sequence[str]) -> Any:
    async def serve(stream: Stream) -> None:
        await stream.receive(1)
        await stream.send(bytes(SERVED_BYTES))

    peering = Peering(host, SWARM, configured=configured, remembered=None, random=Random(host.peer_id))
    host.handle(SERVE, serve)
    async with host.run(), anyio.create_task_group() as tasks:
        tasks.start_soon(peering.run)
        yield peering
        tasks.cancel_scope.cancel()


async def sybil(host: SimulatedHost, honest: Sequence[SimulatedHost], others: Sequence[str], random: Random) -> None:
    exchange = PeerExchange(
        host, SWARM, on_addresses=lambda *_: None, addresses_for=lambda *_: random.sample(others, min(64, len(others)))
    )
    await anyio.sleep(random.uniform(0, REDIAL_SECONDS))
    async with host.run():
        while True:
            for victim in honest:
                if victim.peer_id not in host.peers():
                    with suppress(StarlingError):
                        await host.connect(victim.addresses()[0], deadline_seconds=5.0)
                        await exchange.ask(victim.peer_id)
            await anyio.sleep(random.uniform(0.5, 1.5) * REDIAL_SECONDS)


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
            tasks.start_soon(sybil, enemy, hosts, addresses, random)
        await anyio.sleep(SIEGE_SECONDS)
        pairs = [(one, other) for one in hosts for other in hosts if one is not other]
        kept = sum(other.peer_id in one.peers() for one, other in pairs) / len(pairs)
        peerings = []
        for joiner in joiners:
            known = random.choice(hosts).addresses()
            peerings.append(await stack.enter_async_context(node(joiner, known)))
        await anyio.sleep(JOIN_SECONDS)
        cpu_seconds = process_time() - began
        honest = {host.peer_id for host in hosts}
        joined = sum(len(honest & set(joiner.peers())) >= JOINED_PEERS for joiner in joiners) / len(joiners)
        honest |= {joiner.peer_id for joiner in joiners}
        neighbours = [peer in honest for joiner in joiners for peer in joiner.peers()]
        fetched = [
            await fetch(joiner, peering, host.peer_id)
            for joiner, peering in zip(joiners, peerings, strict=True)
            for host in hosts
        ]
        honest_neighbours = sum(neighbours) / max(1, len(neighbours))
        return Outcome(kept, joined, honest_neighbours, sum(fetched) / len(fetched), cpu_seconds)
    raise AssertionError("unreachable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sybils", type=int, default=300)
    parser.add_argument("--networks", type=int, default=2)
    parser.add_argument("--honest", type=int, default=8)
    parser.add_argument("--joiners", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    add_json_flag(parser)
    arguments = parser.parse_args()
    calm, siege = (
        trio.run(play, sybils, arguments, clock=trio.testing.MockClock(autojump_threshold=0))
        for sybils in (0, arguments.sybils)
    )
    figures = [
        Figure("connections among honest nodes", siege.kept / calm.kept, "of calm", "higher", ">= .9"),
        Figure("joiners with two honest nodes or more", siege.joined / calm.joined, "of calm", "higher", ">= .9"),
        Figure("honest among the neighbours of joiners", siege.honest_neighbours, "share", "higher"),
        Figure("joiners' fetches from honest nodes", siege.fetched / calm.fetched, "of calm", "higher", ">= .9"),
        Figure("CPU of everybody under siege", siege.cpu_seconds, "s", "lower"),
    ]
    report(f"{arguments.sybils} sybils from {arguments.networks} networks", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
