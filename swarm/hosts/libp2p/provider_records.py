"""Which provider records a host keeps for others, and which it gives to whoever asks.

A record is bound to the peer that sent it (the library takes none for others), and to the address from which that peer
was connected. When a key is full, the youngest record of the most crowded address leaves, of peers that are not
connected any more first; a newcomer from a crowded address is that youngest. So strangers at a few addresses cannot
take the records of others, however many identities they have. An answer holds ``ANSWERED`` records: of connected
providers first, of as many networks as there are, the oldest first.

Keys that nobody here provides are bounded in number; the youngest of those leaves that have the fewest records.
"""

from __future__ import annotations

import time

from libp2p.kad_dht.provider_store import PROVIDER_RECORD_EXPIRATION_INTERVAL, ProviderRecord, ProviderStore
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo

from swarm.address_groups import Groups, groups_of, most_crowded, spread

RECORDS_PER_KEY = 128
ANSWERED = 32
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
        here = [record for record in by_age if self._is_connected(record.peer_id)]
        away = [record for record in by_age if not self._is_connected(record.peer_id)]
        apart = [*spread(here, [r.groups for r in here]), *spread(away, [r.groups for r in away])]
        return [record.provider_info for record in apart[:ANSWERED]]

    def _make_room(self, records: dict[str, BoundedRecord]) -> None:
        while len(records) > RECORDS_PER_KEY:
            by_age = sorted(records.values(), key=lambda record: record.first_seconds)
            strangers = [r for r in by_age if r.peer_id != self.local_peer_id]
            away = [r for r in strangers if not self._is_connected(r.peer_id)]
            droppable = away or strangers
            youngest = most_crowded(droppable, [r.groups for r in droppable])[-1]
            del records[str(youngest.peer_id)]

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
