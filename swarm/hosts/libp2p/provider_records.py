"""Which provider records a host keeps for others, and which it gives to a peer that asks.

A record is bound to the peer that sent it (the library takes none for others), and to the address from which that peer
was connected. When a key is full, a record of the most crowded address leaves, of peers that are not connected any more
first. So strangers at a few addresses cannot take the records of others, however many identities they have. Records of
peers that ``known`` returns, which this node would not give up for others (``swarm/peers/keeping.py``), stay as long as
there are others.

Among the records of one address, a quarter of the places are those of the oldest; who has the others is drawn by lot,
again every ``LOT_SECONDS``. The lot of a peer is a keyed hash of its id: providing again does not better it. So a
member that comes after hundreds of identities of its own address has the chance of one of them, and a new one with each
lot. An answer holds ``ANSWERED`` records: three quarters of known providers, if there are so many, so that a crowd does
not hide them; then of connected ones, of as many networks as there are, a quarter of them the oldest and the others by
chance, so that one who asks again gets others.

Keys that nobody here provides are bounded in number; the youngest of those leaves that have the fewest records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from hashlib import blake2b
from random import Random, SystemRandom
from typing import Any

from libp2p.abc import IHost
from libp2p.kad_dht.provider_store import PROVIDER_RECORD_EXPIRATION_INTERVAL, ProviderRecord, ProviderStore
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo

from swarm.address_groups import Groups, groups_of, most_crowded, spread

RECORDS_PER_KEY = 128
ANSWERED = 32
OLDEST_SHARE = 1 / 4  # of the records of one address, and of what an answer holds beside known providers
KNOWN_SHARE = 3 / 4  # of an answer, at most: newcomers are found in the rest
LOT_SECONDS = 600.0  # as often as a member provides a key again
KEYS = 256
KEYS_PER_PROVIDER = 8
ADDRESSES_PER_PROVIDER = 4


class BoundedRecord(ProviderRecord):
    """A record, since when its provider is known, and the address from which it came."""

    def __init__(self, provider: PeerInfo, first_seconds: float, groups: Groups) -> None:
        super().__init__(provider)
        self.first_seconds = first_seconds
        self.groups = groups


class BoundedProviders(ProviderStore):
    """The library's store with bounds, in memory only."""

    providers: dict[bytes, dict[str, BoundedRecord]]  # type: ignore[assignment]

    def __init__(self, host: IHost, peer_routing: Any = None, *, random: Random | None = None) -> None:
        super().__init__(host, peer_routing)
        self._random = random or SystemRandom()
        self._lot_key = self._random.randbytes(16)
        self.known: Callable[[], Collection[str]] = tuple  # by default nobody

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        """Keeps a record, unless its address is the most crowded one and there is no room."""
        peer = str(provider.peer_id)
        known = self.providers.get(key, {}).get(peer)
        others = sum(peer in records for of_key, records in self.providers.items() if of_key != key)
        if known is None and others >= KEYS_PER_PROVIDER and provider.peer_id != self.local_peer_id:
            return
        first_seconds = known.first_seconds if known is not None else time.time()
        short = PeerInfo(provider.peer_id, list(provider.addrs)[:ADDRESSES_PER_PROVIDER])
        records = self.providers.setdefault(key, {})
        records[peer] = BoundedRecord(short, first_seconds, self._groups(provider.peer_id))
        self._make_room(records)
        if len(self.providers) > KEYS:
            self._forget_a_key()

    def get_providers(self, key: bytes) -> list[PeerInfo]:
        records = self.providers.get(key, {})
        oldest_seconds = time.time() - PROVIDER_RECORD_EXPIRATION_INTERVAL
        for peer in [peer for peer, record in records.items() if record.timestamp < oldest_seconds]:
            del records[peer]
        if not records:
            self.providers.pop(key, None)
            return []
        by_age = sorted(records.values(), key=lambda record: record.first_seconds)
        peers = set(self.known())
        known = self._spread([record for record in by_age if str(record.peer_id) in peers])
        known, rest = known[: int(ANSWERED * KNOWN_SHARE)], known[int(ANSWERED * KNOWN_SHARE) :]
        here = [r for r in by_age if str(r.peer_id) not in peers and self._is_connected(r.peer_id)]
        away = [r for r in by_age if str(r.peer_id) not in peers and not self._is_connected(r.peer_id)]
        apart = [*known, *self._spread(here), *self._spread(away), *rest]
        return [record.provider_info for record in apart[:ANSWERED]]

    def _spread(self, by_age: list[BoundedRecord]) -> list[BoundedRecord]:
        """One of each network, then a second one of each, and so on: the oldest, three by chance, the next oldest."""
        oldest = by_age[: int(ANSWERED * OLDEST_SHARE)]
        others = by_age[len(oldest) :]
        self._random.shuffle(others)
        mixed: list[BoundedRecord] = []
        while oldest or others:
            mixed += oldest[:1] + others[:3]
            oldest, others = oldest[1:], others[3:]
        return spread(mixed, [r.groups for r in mixed])

    def _make_room(self, records: dict[str, BoundedRecord]) -> None:
        if len(records) <= RECORDS_PER_KEY:
            return
        known = set(self.known())
        while len(records) > RECORDS_PER_KEY:
            by_age = sorted(records.values(), key=lambda record: record.first_seconds)
            others = [r for r in by_age if r.peer_id != self.local_peer_id]
            strangers = [r for r in others if str(r.peer_id) not in known] or others
            away = [r for r in strangers if not self._is_connected(r.peer_id)]
            droppable = away or strangers
            crowded = most_crowded(droppable, [r.groups for r in droppable])
            del records[str(self._loser(crowded).peer_id)]

    def _loser(self, by_age: list[BoundedRecord]) -> BoundedRecord:
        drawn = by_age[int(RECORDS_PER_KEY * OLDEST_SHARE) :] or by_age[-1:]
        lots = int(time.time() / LOT_SECONDS).to_bytes(8, "big")
        return max(drawn, key=lambda r: blake2b(lots + r.peer_id.to_bytes(), key=self._lot_key).digest())

    def _forget_a_key(self) -> None:
        foreign = [key for key in self.providers if key not in self.providing_keys]
        if foreign:
            fewest = min(len(self.providers[key]) for key in foreign)
            del self.providers[[key for key in foreign if len(self.providers[key]) == fewest][-1]]

    def _is_connected(self, peer: ID) -> bool:
        return bool(self.host.get_network().get_connections(peer))

    def _groups(self, peer: ID) -> Groups:
        for connection in self.host.get_network().get_connections(peer):
            remote = connection.muxed_conn.get_remote_address()  # type: ignore[attr-defined]
            if remote is not None:
                return groups_of(remote[0])
        return groups_of("")
