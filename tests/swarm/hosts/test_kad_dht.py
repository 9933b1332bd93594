"""Provider records and requests of the DHT under many identities: honest members stay to be found."""

from __future__ import annotations

import time
from hashlib import sha256
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from libp2p.abc import IHost, INetStream
from libp2p.kad_dht.common import PROTOCOL_ID
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.identity import NodeKey
from protocol.meeting_points import dht_key
from swarm.hosts.libp2p import kad_dht
from swarm.hosts.libp2p.kad_dht import DIALS, REQUEST_BYTES, REQUESTS, BoundedRequest, SparingHost, in_turn
from swarm.hosts.libp2p.provider_records import (
    ADDRESSES_PER_PROVIDER,
    ANSWERED,
    KEYS,
    KEYS_PER_PROVIDER,
    LOT_SECONDS,
    RECORDS_PER_KEY,
    BoundedProviders,
)

KEY = bytes(range(32))
OURSELVES = ID.from_string(NodeKey(bytes([250]) * 32).peer_id)


def peer(number: int) -> ID:
    return ID(b"\x12\x20" + number.to_bytes(32, "big"))


class Connections:
    """A host, as far as a store of records asks it: who is connected from which IP address."""

    def __init__(self) -> None:
        self.ips: dict[ID, str] = {}

    def get_id(self) -> ID:
        return OURSELVES

    def get_network(self) -> Connections:
        return self

    def get_connections(self, of: ID) -> list[Any]:
        if of not in self.ips:
            return []
        return [SimpleNamespace(muxed_conn=SimpleNamespace(get_remote_address=lambda: (self.ips[of], 4001)))]


class Store:
    def __init__(self, seed: int = 1) -> None:
        self.host = Connections()
        self.records = BoundedProviders(cast(IHost, self.host), random=Random(seed))

    def add(self, number: int, ip: str = "198.51.100.7", key: bytes = KEY, *, stays: bool = False) -> None:
        addresses = [Multiaddr(f"/ip4/{ip}/tcp/{port}") for port in range(1, 10)]
        self.host.ips[peer(number)] = ip
        self.records.add_provider(key, PeerInfo(peer(number), addresses))
        if not stays:
            del self.host.ips[peer(number)]

    def answered(self) -> list[ID]:
        return [provider.peer_id for provider in self.records.get_providers(KEY)]


def test_members_are_found_after_a_thousand_identities_took_every_slot_and_left() -> None:
    store = Store()
    for number in range(1000):
        store.add(number)
    for number in range(1000, 1005):
        store.add(number, stays=True)
    assert set(store.answered()[:5]) == {peer(n) for n in range(1000, 1005)}
    assert len(store.answered()) == ANSWERED
    assert len(store.records.providers[KEY]) == RECORDS_PER_KEY


def test_members_elsewhere_keep_their_records_and_are_answered_though_the_identities_stay() -> None:
    store = Store()
    for number in range(300):
        store.add(number, stays=True)
    store.add(1000, "192.0.2.1", stays=True)
    store.add(1001, "192.0.2.1")
    for number in range(300, 600):
        store.add(number, stays=True)
    assert peer(1000) in store.answered()[:2]
    assert peer(1000) in {record.peer_id for record in store.records.providers[KEY].values()}


def test_oldest_records_of_one_address_stay() -> None:
    store = Store()
    for number in range(3 * RECORDS_PER_KEY):
        store.add(number, stays=True)
    oldest = [peer(number) for number in range(RECORDS_PER_KEY // 4)]
    assert set(oldest) <= {record.peer_id for record in store.records.providers[KEY].values()}
    assert set(oldest[: ANSWERED // 4]) <= set(store.answered())


def test_member_that_comes_after_hundreds_of_its_address_is_found_sooner_or_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, found, now_seconds = Store(), [], 1e9
    monkeypatch.setattr(time, "time", lambda: now_seconds)
    for number in range(200):
        store.add(number, stays=True)
    for _ in range(16):
        now_seconds += LOT_SECONDS
        for number in range(200):
            for _ in range(1 + (number >= 150)):  # some provide more often than others
                store.add(number, stays=True)
        store.add(1000, stays=True)
        found.append(any(peer(1000) in store.answered() for _ in range(8)))
        store.records.providers[KEY].pop(str(peer(1000)), None)
    assert any(found)


def test_known_members_are_found_at_once_beside_hundreds_of_their_address_that_stay() -> None:
    store, members = Store(), [peer(number) for number in range(1000, 1005)]
    store.records.known = lambda: [str(member) for member in members]
    for number in [*range(300), *range(1000, 1005), *range(300, 600)]:
        store.add(number, stays=True)
    assert set(store.answered()[:5]) == set(members)
    assert len(store.answered()) == ANSWERED


def test_newcomers_are_found_beside_as_many_known_members_as_an_answer_holds() -> None:
    store = Store()
    store.records.known = lambda: [str(peer(number)) for number in range(100)]
    for number in range(100):
        store.add(number, stays=True)
    store.add(1000, stays=True)
    assert peer(1000) in store.answered()
    assert len(store.answered()) == ANSWERED


def test_keys_and_addresses_of_one_provider_are_bounded_and_our_own_key_is_never_forgotten() -> None:
    store = Store()
    store.records.providing_keys.add(KEY)
    store.records.add_provider(KEY, PeerInfo(OURSELVES, [Multiaddr("/ip4/192.0.2.1/tcp/1")]))
    for number in range(2 * KEYS):
        for key in range(KEYS_PER_PROVIDER + 4):
            store.add(number, key=f"{number} {key}".encode())
    assert len(store.records.providers) <= KEYS
    assert store.answered() == [OURSELVES]
    kept = next(iter(r for key, records in store.records.providers.items() if key != KEY for r in records.values()))
    assert len(kept.addresses) == ADDRESSES_PER_PROVIDER


def test_expired_records_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.add(1)
    two_days_later = time.time() + 49 * 3600
    monkeypatch.setattr("swarm.hosts.libp2p.provider_records.time.time", lambda: two_days_later)
    assert store.answered() == [] and store.records.providers == {}


def test_nobody_who_answers_contributes_more_than_a_turn() -> None:
    lists = [[PeerInfo(peer(10 * who + n), []) for n in range(count)] for who, count in enumerate((5, 1, 0))]
    assert [p.peer_id for p in in_turn(lists)] == [peer(n) for n in (0, 10, 1, 2, 3, 4)]


def test_addresses_in_answers_are_dialled_seldom() -> None:
    class Dialling(Connections):
        dialled = 0

        async def new_stream(self, to: ID, protocols: Any) -> None:
            self.dialled += 1

    async def main() -> None:
        host = Dialling()
        sparing = SparingHost(cast(IHost, host))
        host.ips[peer(0)] = "192.0.2.1"
        for number in range(DIALS + 5):
            try:
                await sparing.new_stream(peer(1 + number), [PROTOCOL_ID])
            except SwarmException:
                assert number >= DIALS
            await sparing.new_stream(peer(0), [PROTOCOL_ID])
        assert host.dialled == DIALS + DIALS + 5

    trio.run(main)


def test_request_without_end_is_read_up_to_its_bound() -> None:
    class Endless:
        async def read(self, n: int) -> bytes:
            return bytes(n)

    async def main() -> None:
        request = BoundedRequest(cast(INetStream, Endless()))
        assert len(await request.read(REQUEST_BYTES - 1)) == REQUEST_BYTES - 1
        assert len(await request.read(100)) == 1
        with pytest.raises(StreamEOF):
            await request.read(1)

    trio.run(main)


def test_streams_that_are_held_open_keep_nobody_from_asking(tell_on_sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kad_dht, "REQUEST_SECONDS", 3600.0)

    async def story(world: Any, tasks: trio.Nursery) -> None:
        victim, member, holder, newcomer = await world.start(tasks, 4)
        for guest in (member, holder, newcomer):
            await guest.connect(victim.addresses()[0], deadline_seconds=10)
        await member.provide(KEY, deadline_seconds=20)
        for _ in range(2 * REQUESTS):
            await holder.open_stream(victim.peer_id, str(PROTOCOL_ID), deadline_seconds=10)
        found = await newcomer.find_providers(KEY, limit=10, deadline_seconds=20)
        assert any(address.endswith(member.peer_id) for address in found)

    tell_on_sockets(story)


def test_provider_is_found_under_the_key_that_others_compute_from_the_cid(tell_on_sockets) -> None:
    swarm_id = bytes(range(16))
    content = b"starling/swarm/1\0" + swarm_id
    key = b"\x12\x20" + sha256(content).digest()  # the multihash in its CID, in base32 or base58 and of any version

    async def story(world: Any, tasks: trio.Nursery) -> None:
        other, provider = await world.chain(tasks, 2)
        await provider.provide(dht_key(swarm_id), deadline_seconds=10)
        stream = await other.open_stream(provider.peer_id, str(PROTOCOL_ID), deadline_seconds=10)
        request = Message(type=Message.MessageType.GET_PROVIDERS, key=key).SerializeToString()
        await stream.send(bytes([len(request)]) + request)
        await stream.close()
        answer = await world.read_all(stream)
        found = Message.FromString(answer[2 if answer[0] & 0x80 else 1 :])  # after its length
        assert [str(ID(p.id)) for p in found.providerPeers] == [provider.peer_id]

    tell_on_sockets(story)
