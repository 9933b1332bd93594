"""A newcomer that finds its swarm by the DHT alone, where one stranger's identities provide the swarm's key too.

    python -m scripts.attacks.dht_joining [--sybils 300] [--honest 5] [--together] [--trials 20] [--json]

``--honest`` members know each other. ``--sybils`` identities of one address provided the swarm's key before them, stay,
take connections, answer who is in the swarm with each other, and send nothing. A newcomer knows the address of one host
that serves the DHT, is in no swarm and knows none of them; it keeps records as our libp2p host (``BoundedProviders``).
Once the newcomer is connected to ``JOINED_PEERS`` members it has joined. Each trial is a world of its own, in virtual
time on the simulated network. Members have a network each; with ``--together`` all are at the identities' address,
where nothing tells the host who is who.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

import anyio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.identity import NodeKey
from protocol.meeting_points import multihash
from scripts.attacks.common.members import in_virtual_time
from scripts.attacks.sybils import SWARM, count_dials, node
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.hosts.libp2p.provider_records import BoundedProviders
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.peer_exchange import PeerExchange

KEY: Final = bytes(range(32))
JOINED_PEERS: Final = 2
JOIN_SECONDS: Final = 120.0
CALM_SECONDS: Final = 30.0
NAMED_AT_ONCE: Final = 64
IDENTITIES_NETWORK: Final = 100


class StoreHost:
    """The host that is asked, as far as its store of records asks it: who is connected, and from where."""

    def __init__(self, ips: Mapping[str, str]) -> None:
        self._ips = ips

    def get_id(self) -> ID:
        return ID.from_string(NodeKey(bytes(32)).peer_id)

    def get_network(self) -> StoreHost:
        return self

    def get_connections(self, peer: ID) -> list[Any]:
        at = SimpleNamespace(get_remote_address=lambda: (self._ips[str(peer)], 4001))
        return [SimpleNamespace(muxed_conn=at)] if str(peer) in self._ips else []


async def identity(host: SimulatedHost, others: Sequence[str], random: Random) -> None:
    PeerExchange(
        host, SWARM, on_addresses=lambda *_: None, addresses_for=lambda *_: random.sample(others, NAMED_AT_ONCE)
    )
    async with host.run():
        await anyio.sleep_forever()


def ask_store(host: SimulatedHost, store: BoundedProviders, addresses: Mapping[str, str]) -> None:
    """From now on the host's look-ups in the DHT are answered by ``store``."""

    async def find(key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[str]:
        await anyio.sleep(0.2)
        return [addresses[str(found.peer_id)] for found in store.get_providers(multihash(KEY))][:limit]

    host.find_providers = find  # type: ignore[method-assign]


async def play(seed: int, sybils: int, honest: int, together: bool) -> tuple[float, int]:
    """Returns the seconds until the newcomer has joined, infinite if it did not, and the dials that it made."""
    network, random = SimulatedNetwork(seed=seed), Random(seed)
    door = network.host("door", place=1)
    members = [network.host(f"member {n}", place=None if together else 256 * (n + 1) + 1) for n in range(honest)]
    newcomer = network.host("newcomer", place=256 * 50 + 1)
    crowd = [
        network.host(f"identity {n}", place=None if together else 256 * IDENTITIES_NETWORK + n % 250)
        for n in range(sybils)
    ]
    providers = [*crowd, *members]
    addresses = {host.peer_id: host.addresses()[0] for host in providers}
    one_ip = "198.51.100.7"
    ips = {host.peer_id: one_ip if together else host.connections.ip for host in providers}
    store = BoundedProviders(cast(IHost, StoreHost(ips)), random=Random(seed))
    for host in providers:
        at = [Multiaddr(f"/ip4/{ips[host.peer_id]}/tcp/1")]
        store.add_provider(multihash(KEY), PeerInfo(ID.from_string(host.peer_id), at))
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await stack.enter_async_context(door.run())
        for host in members:
            await stack.enter_async_context(node(host, [] if host is members[0] else members[0].addresses()))
        for host in crowd:
            tasks.start_soon(identity, host, [addresses[each.peer_id] for each in crowd], random)
        await anyio.sleep(CALM_SECONDS)
        ask_store(newcomer, store, addresses)
        dials = count_dials(newcomer)
        began_seconds, wanted = anyio.current_time(), {host.peer_id for host in members}
        await stack.enter_async_context(node(newcomer, door.addresses()))
        with anyio.move_on_after(JOIN_SECONDS):
            while len(wanted & set(newcomer.peers())) < JOINED_PEERS:  # noqa: ASYNC110  the host has no event for it
                await anyio.sleep(0.5)
        took_seconds = anyio.current_time() - began_seconds
        return (took_seconds if took_seconds < JOIN_SECONDS else math.inf), len(dials)
    raise AssertionError("unreachable")


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--sybils", type=int, default=300)
    parser.add_argument("--honest", type=int, default=5)
    parser.add_argument("--together", action="store_true", help="members are at the identities' address")
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    ends = []
    for seed in range(options.trials):
        with patch("swarm.hosts.libp2p.provider_records.time.time", return_value=1e9 + 60.0 * seed):
            ends.append(in_virtual_time(play, seed, options.sybils, options.honest, options.together))
    joined = [seconds for seconds, _ in ends if seconds < math.inf]
    figures = [
        Figure(f"newcomers that joined within {JOIN_SECONDS:g} s", len(joined), f"of {len(ends)}", "higher", ">= .95"),
        Figure("seconds until they had, median", statistics.median(joined) if joined else math.inf, "s", "lower"),
        Figure("dials of a newcomer until then, mean", statistics.mean(dials for _, dials in ends), "", "lower"),
    ]
    where = "of the members' address" if options.together else "of one address"
    report(f"{options.sybils} identities {where} in the DHT, {options.honest} members", figures, as_json=options.json)


if __name__ == "__main__":
    main()
