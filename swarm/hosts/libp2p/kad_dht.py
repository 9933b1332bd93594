"""Kad-DHT for provider records: who provides the key of a swarm.

Differences from the library's, beyond bounds on everything that a stranger can make grow:

- The library's own look-up stops at the local store as soon as that knows one provider. For a key that every member
  provides (the key of a swarm) that is always this host itself. Here the closest peers to the key are always asked, and
  the peers that we are connected with besides them: identities can be made that are closest to any key, but they cannot
  take the places of those that we know. What these answer comes first, and none contributes more than its share.
- The library stores the first ``k`` providers of a key for two days and ignores all others, so that twenty identities
  hide a swarm. ``provider_records`` says which records are kept, and which are given to a peer that asks.
- Requests are served for ``REQUEST_SECONDS`` and ``REQUEST_BYTES`` at most; when all places are taken, the oldest
  request of the most crowded address ends. The library serves twelve streams for as long as their peers like.
- Every message passes ``dht_messages`` before the library reads anything in it.
- The peers of an answer are dialled ``DIALS`` at once and one each ``DIAL_EVERY_SECONDS`` afterwards at most: addresses
  in answers are hearsay, and may be those of people who have nothing to do with any of this.
"""

from __future__ import annotations

import time
from itertools import zip_longest
from typing import Any, cast

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.kad_dht import kad_dht as library_dht
from libp2p.kad_dht import peer_routing, provider_store
from libp2p.kad_dht.common import ALPHA
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo

from swarm.address_groups import groups_of, spread
from swarm.host import Address
from swarm.hosts.libp2p.containment import Failures
from swarm.hosts.libp2p.dht_messages import read_bounded
from swarm.hosts.libp2p.doorway import Visitor, WaitingRoom
from swarm.hosts.libp2p.provider_records import ADDRESSES_PER_PROVIDER, ANSWERED, BoundedProviders
from swarm.token_bucket import TokenBucket

ASKED_PEERS = 20  # Kademlia's k
ASKED_CONNECTED = 20
MESSAGE_BYTES = 64 * 1024  # an answer with ``ANSWERED`` providers and twenty closer peers has less than 40 kB
REQUEST_BYTES = 16 * 1024
REQUEST_SECONDS = 10.0
REQUESTS = 12
DIALS = 20
DIAL_EVERY_SECONDS = 3.0

for _module in (library_dht, peer_routing, provider_store):
    _module.MAX_DHT_MESSAGE_SIZE = MESSAGE_BYTES  # type: ignore[attr-defined]  # the library's is 4 MiB
    _module.read_varint_prefixed_bytes_limited = read_bounded  # type: ignore[attr-defined]


class SparingHost:
    """The host as the DHT sees it: dials seldom."""

    def __init__(self, host: IHost) -> None:
        self._host = host
        self._dials = TokenBucket(1 / DIAL_EVERY_SECONDS, DIALS, now_seconds=time.monotonic())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def new_stream(self, peer_id: ID, protocol_ids: list[TProtocol]) -> INetStream:
        if not is_connected(self._host, peer_id) and not self._dials.take(1, now_seconds=time.monotonic()):
            raise SwarmException(f"{peer_id} is not connected, and enough others were dialled for the DHT")
        return await self._host.new_stream(peer_id, protocol_ids)


class BoundedRequest:
    """An incoming stream of the DHT: reads ``REQUEST_BYTES`` at most, and can be dropped."""

    def __init__(self, stream: INetStream) -> None:
        self.scope = trio.CancelScope()
        self._stream = stream
        self._left_bytes = REQUEST_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, n: int | None = None) -> bytes:
        if self._left_bytes <= 0:
            raise StreamEOF(f"more than {REQUEST_BYTES} bytes of requests on one stream")
        try:
            read = await self._stream.read(self._left_bytes if n is None else min(n, self._left_bytes))
        except StreamEOF:
            return b""  # as the library expects it; where it meets the exception, it resets the stream and its answer
        self._left_bytes -= len(read)
        return read

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._stream.get_remote_address()

    def drop(self) -> None:
        self.scope.cancel()


class BoundedDht(KadDHT):
    """The library's DHT, in server mode, for provider records alone: it stores no values.

    It serves ``REQUESTS`` streams at once, each for ``REQUEST_SECONDS`` and ``REQUEST_BYTES`` at most. Where all places
    are taken, the oldest request of the most crowded address ends.
    """

    def __init__(self, host: IHost, failures: Failures) -> None:
        self._requests: WaitingRoom[Visitor] = WaitingRoom(REQUESTS, "DHT request", failures)
        super().__init__(cast(IHost, SparingHost(host)), DHTMode.SERVER, enable_values=False)
        self._inbound_limiter = trio.CapacityLimiter(2 * REQUESTS)  # those that end among them
        self.provider_store: BoundedProviders = BoundedProviders(self.host, self.peer_routing)

    async def handle_stream(self, stream: INetStream) -> None:
        request = BoundedRequest(stream)
        with self._requests.place_for(request), trio.move_on_after(REQUEST_SECONDS), request.scope:
            await super().handle_stream(cast(INetStream, request))
            return
        await stream.reset()


def is_connected(host: IHost, peer: ID) -> bool:
    return bool(host.get_network().get_connections(peer))


async def find_providers(dht: KadDHT, key: bytes, *, limit: int) -> list[Address]:
    """Returns addresses of at most ``limit`` other providers, the first ``ADDRESSES_PER_PROVIDER`` of each."""
    connected = list(dict.fromkeys(dht.host.get_connected_peers()))[:ASKED_CONNECTED]
    closest = await dht.peer_routing.find_closest_peers_network(key, ASKED_PEERS)
    answers: dict[ID, list[PeerInfo]] = {}
    slots = trio.Semaphore(ALPHA)

    async def ask(peer: ID) -> None:
        async with slots:
            with trio.move_on_after(REQUEST_SECONDS):
                providers, _ = await dht.provider_store._get_providers_from_peer_with_closers(peer, key)
                answers[peer] = providers[:ANSWERED]

    async with trio.open_nursery() as nursery:
        for peer in dict.fromkeys([*connected, *closest]):
            if peer != dht.local_peer_id:
                nursery.start_soon(ask, peer)
    known = in_turn([dht.provider_store.get_providers(key), *(answers.get(peer, []) for peer in connected)])
    heard = in_turn([answers.get(peer, []) for peer in closest if peer not in connected])
    found: dict[ID, PeerInfo] = {}
    for provider in in_turn([known, heard]):
        if provider.peer_id != dht.local_peer_id and _addresses(provider):
            found.setdefault(provider.peer_id, provider)
    apart = spread(found.values(), [groups_of(_addresses(p)[0].split("/")[2]) for p in found.values()])
    return [address for provider in apart[:limit] for address in _addresses(provider)]


def in_turn(lists: list[list[PeerInfo]]) -> list[PeerInfo]:
    """Returns the first of each list, then the second of each, and so on."""
    return [provider for turn in zip_longest(*lists) for provider in turn if provider is not None]


def _addresses(provider: PeerInfo) -> list[Address]:
    suffix = f"/p2p/{provider.peer_id}"
    bare = dict.fromkeys(str(address).removesuffix(suffix) for address in provider.addrs)
    return [address + suffix for address in list(bare)[:ADDRESSES_PER_PROVIDER] if "/p2p/" not in address]
