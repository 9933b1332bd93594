"""Identities that provide the key of a swarm in the DHT of one host before its honest members do.

    python -m scripts.attacks.provider_slots [--sybils 300] [--honest 5] [--lookups 8] [--known] [--json]

``--sybils`` identities of one stranger and ``--honest`` members are connected from one address and provide the swarm's
key anew every ten minutes; a newcomer that knows only this host looks for providers, ``--lookups`` times. The attacked
host's store of records is played, without sockets and in virtual time. Figures are the shares of the members that are
found in one look-up, in all at one time, and in all of an hour.

With ``--known`` the attacked host would not give up its connections to the members for others, as a node that learnt
from them or that dialled them; so a member is known after it was of use, and not before.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

from libp2p.abc import IHost
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.identity import NodeKey
from protocol.meeting_points import multihash
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.hosts.libp2p.provider_records import LOT_SECONDS, BoundedProviders

KEY: Final = bytes(range(32))
HOUR_SECONDS: Final = 3600.0
SEEDS: Final = 4


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


def play(arguments: argparse.Namespace, seed: int) -> tuple[float, float, float]:
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


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--sybils", type=int, default=300)
    parser.add_argument("--honest", type=int, default=5)
    parser.add_argument("--lookups", type=int, default=8)
    parser.add_argument("--known", action="store_true", help="the attacked host keeps the members for certain")
    arguments = parser.parse_args()
    played = [play(arguments, seed) for seed in range(SEEDS)]
    in_one, at_once, in_an_hour = (sum(each) / len(played) for each in zip(*played, strict=True))
    figures = [
        Figure("members found in one look-up", in_one, "share", "higher", ">= .9"),
        Figure(f"members found in {arguments.lookups} look-ups at one time", at_once, "share", "higher"),
        Figure("members found in an hour of look-ups", in_an_hour, "share", "higher"),
    ]
    kind = "members known" if arguments.known else "members unknown"
    report(f"{arguments.sybils} identities in the store, {kind}", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
