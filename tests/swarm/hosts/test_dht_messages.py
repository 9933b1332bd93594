"""Messages of the DHT that cost much or leave something unreadable behind: what the library gets to see of them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import trio
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.identity import PEER_ID_BYTES, NodeKey
from swarm.hosts.libp2p.dht_messages import ADDRESSES, PEERS, bounded
from swarm.hosts.libp2p.kad_dht import find_providers
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

PEER = ID.from_string(NodeKey(bytes([7]) * 32).peer_id)
KEY = bytes(32)
SOUND = Multiaddr("/ip4/192.0.2.7/tcp/4001").to_bytes()
JUNK = b"\xff\xff\xff\x00"


def answer(*addresses: bytes, peer: bytes = PEER.to_bytes()) -> Message:
    return Message(type=Message.GET_PROVIDERS, providerPeers=[Message.Peer(id=peer, addrs=addresses)])


class AnsweringStream:
    """A stream on which one answer waits."""

    def __init__(self, message: Message) -> None:
        raw = message.SerializeToString()
        self._left = bytes([len(raw) & 0x7F | 0x80, len(raw) >> 7]) + raw
        self.muxed_conn = SimpleNamespace(peer_id=PEER)

    async def read(self, n: int) -> bytes:
        piece, self._left = self._left[:n], self._left[n:]
        return piece

    async def write(self, raw: bytes) -> None:
        return

    async def close(self) -> None:
        return


def found(message: Message) -> list[str]:
    """What a search finds where the only peer that is asked answers this."""
    host = Libp2pHost(NodeKey(bytes(32)), [])
    dht = host._dht

    async def closest(key: bytes, count: int) -> list[ID]:
        return [PEER]

    async def new_stream(peer: ID, protocols: Any) -> AnsweringStream:
        return AnsweringStream(message)

    cast(Any, dht.peer_routing).find_closest_peers_network = closest
    cast(Any, host._host).new_stream = new_stream
    dht.provider_store.host = host._host
    return trio.run(partial(find_providers, dht, KEY, limit=8))


def test_an_address_that_cannot_be_read_is_dropped_and_the_others_are_found() -> None:
    assert found(answer(JUNK, SOUND, JUNK)) == [f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER}"]


def test_a_provider_without_a_readable_address_ends_no_search() -> None:
    assert found(answer(JUNK)) == []


def test_a_long_peer_id_is_dropped_before_it_is_written_as_base58() -> None:
    kept = Message.FromString(bounded(answer(SOUND, peer=bytes(PEER_ID_BYTES + 1)).SerializeToString()))
    assert not kept.providerPeers


def test_peers_and_addresses_beyond_the_bounds_and_signed_records_are_dropped() -> None:
    message = answer(*[SOUND] * (ADDRESSES + 1))
    message.providerPeers[0].signedRecord = b"record"
    message.closerPeers.extend([Message.Peer(id=PEER.to_bytes())] * (PEERS + 1))
    message.senderRecord = b"record"
    kept = Message.FromString(bounded(message.SerializeToString()))
    assert len(kept.providerPeers[0].addrs) == ADDRESSES
    assert len(kept.closerPeers) == PEERS
    assert not kept.providerPeers[0].HasField("signedRecord")
    assert not kept.HasField("senderRecord")


def test_what_an_honest_peer_sends_is_kept_and_bytes_that_are_no_message_are_left_to_the_library() -> None:
    honest = answer(SOUND, SOUND).SerializeToString()
    assert bounded(honest) == honest
    assert bounded(b"\xff") == b"\xff"
