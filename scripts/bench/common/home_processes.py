"""Swarm processes on the machines of ``nat_lab``: how they are started, and what one sees of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from scripts.bench.common.nat_lab import PORT, NatPlace
from scripts.bench.common.swarm_processes import SwarmProcess, group
from swarm import api
from swarm.client import SwarmClient

HEARTBEAT_SECONDS = 2.0
FETCH_SECONDS = 5.0


def start_process(
    number: int, place: NatPlace, known: Sequence[SwarmProcess], directory: Path, *, host: str = "py"
) -> SwarmProcess:
    """Starts a swarm process that knows where the ``known`` ones listen, as far as this machine's own network goes."""
    family = "/ip6/" if ":" in place.address else "/ip4/"
    addresses = [address for process in known for address in process.addresses if address.startswith(family)]
    return SwarmProcess(
        number,
        directory,
        [address for address in addresses if not is_loopback(address)],
        prefix=place.command([]),
        listen=f"/ip4/0.0.0.0/tcp/{PORT}",
        heartbeat_seconds=HEARTBEAT_SECONDS,
        host=host,
    )


def is_loopback(address: str) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))


def connection(client: SwarmClient, peer: str) -> str:
    """Returns how ``peer`` is connected: "direct", "relayed" or "none"."""
    states = [each for each in client.peers() if each.peer == peer and each.connected]
    return "none" if not states else "relayed" if states[0].relayed else "direct"


def share_one(client: SwarmClient, random: Random) -> None:
    """Shares a small group."""
    client.share([group(random, 256, 4, 1)])


def fetches_newest(client: SwarmClient, seen: Sequence[api.SeenGroup]) -> bool:
    """Whether the newest of ``seen`` comes from the peer that announced it."""
    newest = seen[-1]
    wanted = [api.Wanted(newest.advert.blob, newest.advert.size, (newest.peer,))]
    return client.fetch(wanted, deadline_seconds=FETCH_SECONDS)[0].is_here
