"""Memory of a swarm process that relays: resident bytes before and after 200 members have taken a place, on loopback.

    python -m scripts.bench.relay_memory [--places 200] [--json]

The members are hosts of one other process, 16 at each address of 127.0.0.0/8, since a relay gives no more places to one
network. Then it is watched for ``WATCH_SECONDS`` while nothing is relayed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import anyio

from node.supervision.watching.process_memory import resident_bytes
from protocol.identity import NodeKey
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.swarm_processes import SwarmProcess
from swarm.hosts.libp2p.connecting import listening
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.libp2p.relaying.relay_book import RESERVATIONS_PER_NETWORK
from swarm.peers.peer_exchange import PeerExchange

BAR_MB: Final = 100.0
SETTLE_SECONDS: Final = 3.0
WATCH_SECONDS: Final = 30.0
SWARM_ID: Final = bytes(16)  # that of ``SwarmProcess``


async def take_places(relay: SwarmProcess, places: int, seen: list[float]) -> None:
    """Takes the places, and adds the relay's resident bytes, at once and after ``WATCH_SECONDS``, and the places and
    connections that are left then."""
    address = next(each for each in relay.addresses if "/127.0.0.1/" in each)
    async with AsyncExitStack() as stack:
        for number in range(places):
            ip = f"127.0.1.{1 + number // RESERVATIONS_PER_NETWORK}"
            host = Libp2pHost(NodeKey.generate(), [f"/ip4/{ip}/tcp/0"])
            exchange = PeerExchange(
                host, SWARM_ID, on_addresses=lambda peer, own, others: None, addresses_for=lambda peer, sought: ()
            )
            await stack.enter_async_context(host.run())
            peer = await host.connect(address, deadline_seconds=30.0)
            await exchange.ask(peer)
            await host.reserve(peer, deadline_seconds=30.0)
        for wait_seconds in (SETTLE_SECONDS, WATCH_SECONDS):
            await anyio.sleep(wait_seconds)
            seen.append(resident_bytes(relay.process.pid) or 0.0)
        status = relay.client.status()
        seen += [float(status.reach.reservations), float(status.connected_peers)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--places", type=int, default=200)
    add_json_flag(parser)
    options = parser.parse_args(arguments)
    vars(listening)["is_public"] = lambda ip: True  # so that members dial from the address at which they listen
    with tempfile.TemporaryDirectory() as directory:
        relay = SwarmProcess(0, Path(directory), ())
        try:
            before = resident_bytes(relay.process.pid) or 0.0
            seen: list[float] = []
            anyio.run(take_places, relay, options.places, seen, backend="trio")
        finally:
            relay.close()
    at_once, later, left, connected = seen
    figures = [
        Figure("alone", before / 1e6, "MB", "lower"),
        Figure(f"with {options.places} places", at_once / 1e6, "MB", "lower", f"≤ {BAR_MB:g}"),
        Figure(f"{WATCH_SECONDS:g} s later", later / 1e6, "MB", "lower", f"≤ {BAR_MB:g}"),
        Figure("places then", left, "places", "higher"),
        Figure("peers connected then", connected, "peers", "higher"),
    ]
    report("relay_memory", figures, as_json=options.json)


if __name__ == "__main__":
    main()
