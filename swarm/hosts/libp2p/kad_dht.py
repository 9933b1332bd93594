"""Provider records in Kad-DHT.

The library's own look-up stops at the local store as soon as that knows one provider. For a key that every member
provides (the key of a swarm) that is always this host itself. Here the closest peers to the key are always asked.
"""

from __future__ import annotations

import trio
from libp2p.kad_dht.common import ALPHA
from libp2p.kad_dht.kad_dht import KadDHT
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo

from swarm.host import Address

ASKED_PEERS = 20  # Kademlia's k
ADDRESSES_PER_PROVIDER = 4


async def find_providers(dht: KadDHT, key: bytes, *, limit: int) -> list[Address]:
    """Returns addresses of at most ``limit`` other providers, the first ``ADDRESSES_PER_PROVIDER`` of each."""
    found: dict[ID, PeerInfo] = {}
    closest = await dht.peer_routing.find_closest_peers_network(key, ASKED_PEERS)
    slots = trio.Semaphore(ALPHA)

    async def ask(peer: ID) -> None:
        async with slots:
            if len(found) <= limit:
                providers, _ = await dht.provider_store._get_providers_from_peer_with_closers(peer, key)
                found.update({provider.peer_id: provider for provider in providers})

    async with trio.open_nursery() as nursery:
        for peer in closest:
            if peer != dht.local_peer_id:
                nursery.start_soon(ask, peer)
    for provider in dht.provider_store.get_providers(key):
        found.setdefault(provider.peer_id, provider)
    found.pop(dht.local_peer_id, None)
    return [address for provider in list(found.values())[:limit] for address in _addresses(provider)]


def _addresses(provider: PeerInfo) -> list[Address]:
    suffix = f"/p2p/{provider.peer_id}"
    bare = dict.fromkeys(str(address).removesuffix(suffix) for address in provider.addrs)
    return [address + suffix for address in list(bare)[:ADDRESSES_PER_PROVIDER] if "/p2p/" not in address]
