"""Identities that provide the key of a swarm in the DHT of one host before its honest members do.

``--sybils`` identities of one stranger connect to a host on loopback, one after another, provide the swarm's key, leave
(or stay, with ``--stay``), and another one holds twelve streams of the DHT open. Then ``--honest`` members connect and
provide the key, and a newcomer that knows only this host looks for providers, ``--lookups`` times. The share of the
members that it finds is that of one look-up at the mean, and of all of them together.

    python -m scripts.attacks.provider_slots [--sybils 300] [--honest 5] [--lookups 8] [--stay] [--store] [--known]

With ``--store`` only the attacked host's store of records is played, without sockets and in virtual time: hundreds of
hosts in one process miss their deadlines on a busy machine; identities and members are connected from one address
and provide anew every ten minutes. Figures are of one look-up, of all at one time, and of all in an hour.

With ``--known`` the attacked host would not give up its connections to the members for others, as a node that learnt
from them or that dialled them; so a member is known after it was of use, and not before.

Everything comes from 127.0.0.1: addresses tell nothing here, which is the attacker's best case. The attacked host takes
as many connections more as there are identities, so that all can stay; a node would give most of them up
(``swarm/peers/keeping.py``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from random import Random
from time import process_time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import trio
from libp2p.abc import IHost
from libp2p.kad_dht.common import PROTOCOL_ID
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.errors import StarlingError
from protocol.identity import NodeKey
from protocol.meeting_points import multihash
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.hosts.libp2p.libp2p_host import CONNECTIONS, Libp2pHost
from swarm.hosts.libp2p.provider_records import LOT_SECONDS, BoundedProviders

KEY = bytes(range(32))
WANTED = 32
DEADLINE_SECONDS = 60.0  # generous: hundreds of hosts share one process
ASIDE = 12
HOUR_SECONDS = 3600.0
STORE_SEEDS = 4


def host(connections: int = CONNECTIONS) -> Libp2pHost:
    return Libp2pHost(NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"], connections=connections)


async def provide(guest: Libp2pHost, address: str) -> None:
    """Sends the record to the attacked host alone: a look-up would cost everybody else time, and change nothing."""
    peer = await guest.connect(address, deadline_seconds=DEADLINE_SECONDS)
    with trio.move_on_after(DEADLINE_SECONDS):
        await guest._dht.provider_store._send_add_provider(ID.from_string(peer), multihash(KEY))


async def hold_streams(address: str, stack: AsyncExitStack) -> None:
    holder = host()
    await stack.enter_async_context(holder.run())
    peer = await holder.connect(address, deadline_seconds=DEADLINE_SECONDS)
    for _ in range(ASIDE):
        await holder.open_stream(peer, str(PROTOCOL_ID), deadline_seconds=DEADLINE_SECONDS)


async def play(sybils: int, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """Returns the shares of honest members that a newcomer finds in one look-up and in all, and everybody's CPU
    seconds."""
    began = process_time()
    async with AsyncExitStack() as stack:
        victim = host(CONNECTIONS + sybils)
        await stack.enter_async_context(victim.run())
        (address,) = victim.addresses()
        for _ in range(sybils):
            sybil = host()
            async with AsyncExitStack() as visit:
                await (stack if arguments.stay else visit).enter_async_context(sybil.run())
                await provide(sybil, address)
        members = [host() for _ in range(arguments.honest)]
        for member in members:
            await stack.enter_async_context(member.run())
            await provide(member, address)
        honest = {member.peer_id for member in members}
        if arguments.known:
            victim.prefer_providers(lambda: honest)
        if sybils:
            await hold_streams(address, stack)
        newcomer = host()
        await stack.enter_async_context(newcomer.run())
        await newcomer.connect(address, deadline_seconds=DEADLINE_SECONDS)
        found: list[set[str]] = []
        for _ in range(arguments.lookups):
            found.append(set())
            with suppress(StarlingError):
                addresses = await newcomer.find_providers(KEY, limit=WANTED, deadline_seconds=2 * DEADLINE_SECONDS)
                found[-1] = honest & {address.rpartition("/p2p/")[2] for address in addresses}
        in_one = sum(map(len, found)) / len(found) / len(honest)
        return in_one, len(set().union(*found)) / len(honest), process_time() - began
    raise AssertionError("unreachable")


class StoreHost:
    """A host, as far as a store of records asks it: all identities and members are connected from one address."""

    def __init__(self, peers: Sequence[ID]) -> None:
        self._peers = set(peers)

    def get_id(self) -> ID:
        return ID.from_string(NodeKey(bytes(32)).peer_id)

    def get_network(self) -> StoreHost:
        return self

    def get_connections(self, peer: ID) -> list[Any]:
        at = SimpleNamespace(get_remote_address=lambda: ("198.51.100.7", 4001))
        return [SimpleNamespace(muxed_conn=at)] if peer in self._peers else []


def play_store(arguments: argparse.Namespace, seed: int) -> tuple[float, float, float]:
    """Returns the shares of members that one look-up finds, all look-ups at one time, and all in an hour."""
    peers = [ID(b"\x12\x20" + number.to_bytes(32, "big")) for number in range(arguments.sybils + arguments.honest)]
    members = set(peers[arguments.sybils :])
    store = BoundedProviders(cast(IHost, StoreHost(peers)), random=Random(seed))
    if arguments.known:
        store.known = lambda: [str(member) for member in members]
    looked: list[list[set[ID]]] = []
    for turn in range(int(HOUR_SECONDS / LOT_SECONDS)):
        now_seconds = 1e9 + turn * LOT_SECONDS
        with patch("swarm.hosts.libp2p.provider_records.time.time", return_value=now_seconds):
            for peer in peers:
                store.add_provider(multihash(KEY), PeerInfo(peer, [Multiaddr("/ip4/198.51.100.7/tcp/1")]))
            answers = [store.get_providers(multihash(KEY)) for _ in range(arguments.lookups)]
        looked.append([members & {provider.peer_id for provider in answer} for answer in answers])
    in_one = [len(found) / len(members) for turn in looked for found in turn]
    at_once = [len(set().union(*turn)) / len(members) for turn in looked]
    in_an_hour = len(set().union(*(found for turn in looked for found in turn))) / len(members)
    return sum(in_one) / len(in_one), sum(at_once) / len(at_once), in_an_hour


def report_store(arguments: argparse.Namespace) -> None:
    played = [play_store(arguments, seed) for seed in range(STORE_SEEDS)]
    in_one, at_once, in_an_hour = (sum(each) / len(played) for each in zip(*played, strict=True))
    figures = [
        Figure("members found in one look-up", in_one, "share", "higher", ">= .9"),
        Figure(f"members found in {arguments.lookups} look-ups at one time", at_once, "share", "higher"),
        Figure("members found in an hour of look-ups", in_an_hour, "share", "higher"),
    ]
    kind = "members known" if arguments.known else "members unknown"
    report(f"{arguments.sybils} identities in the store alone, {kind}", figures, as_json=arguments.json)


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--sybils", type=int, default=300)
    parser.add_argument("--honest", type=int, default=5)
    parser.add_argument("--lookups", type=int, default=8)
    parser.add_argument("--stay", action="store_true", help="the identities stay connected")
    parser.add_argument("--store", action="store_true", help="only the store of records, without sockets")
    parser.add_argument("--known", action="store_true", help="the attacked host keeps the members for certain")
    arguments = parser.parse_args()
    if arguments.store:
        report_store(arguments)
        return
    calm, _, _ = trio.run(play, 0, arguments)
    if not calm:
        raise SystemExit("no member was found in calm: there is nothing to compare with")
    in_one, in_all, cpu_seconds = trio.run(play, arguments.sybils, arguments)
    figures = [
        Figure("honest members found, calm", calm, "share", "higher"),
        Figure("honest members found among the identities", in_one / calm, "of calm", "higher", ">= .9"),
        Figure(f"found in {arguments.lookups} look-ups", in_all / calm, "of calm", "higher"),
        Figure("CPU of everybody", cpu_seconds, "s", "lower"),
    ]
    kind = "that stay" if arguments.stay else "that leave"
    report(f"{arguments.sybils} identities {kind}", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
