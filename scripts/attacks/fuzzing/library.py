"""What reaches py-libp2p and what we put around it: RPCs of GossipSub, requests and answers of the DHT, addresses."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.kad_dht.pb.kademlia_pb2 import Message as DhtMessage
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol import limits
from protocol.identity import NodeKey
from protocol.meeting_points import dht_key, gossip_topic
from scripts.attacks.fuzzing.extremes import Extremes
from scripts.attacks.fuzzing.measuring import Act
from scripts.attacks.fuzzing.targets import Target, direct, driven, length_prefixed
from swarm.address_groups import groups_of
from swarm.host import GossipVerdict
from swarm.hosts.libp2p.connecting.dialling import parse_address
from swarm.hosts.libp2p.gossipsub.pubsub import RefusedRpcError, VerdictPubsub
from swarm.hosts.libp2p.kad_dht import MESSAGE_BYTES, REQUEST_BYTES, find_providers
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.libp2p.provider_records import BoundedProviders
from swarm.peers.discovery import is_dialable

SWARM_ID = bytes(16)
TOPIC = gossip_topic(SWARM_ID)
KEY = dht_key(SWARM_ID)
_PAIR = create_new_key_pair(seed=bytes(31) + b"\1")
_PEER = ID.from_pubkey(_PAIR.public_key)
_ADDRESSES = [
    "/ip4/192.0.2.7/tcp/4001", "/ip6/2001:db8::7/tcp/4001", "/dns4/example.org/tcp/443", "/unix/a",
    "/ip4/192.0.2.7/udp/1/quic-v1", f"/ip4/192.0.2.7/tcp/4001/p2p/{_PEER}", "/ip6zone/eth0/ip6/fe80::1/tcp/1",
]  # fmt: skip


def library_targets() -> list[Target]:
    raw_addresses = [Multiaddr(address).to_bytes() for address in _ADDRESSES]
    texts = [f"{address}/p2p/{_PEER}".encode() for address in _ADDRESSES]
    dht, answer, request = _Dht(), partial(_full_answer, raw_addresses), partial(_full_request, raw_addresses)
    return [
        Target("RPC of gossip", _Gossip().prepare, _rpcs(), 12, _full_rpc, 1),
        Target("answer of the DHT", dht.answered, _answers(raw_addresses), 0.5, answer, 0.3),
        Target("request to the DHT", dht.requested, _requests(raw_addresses), 0.5, request, 0.3),
        Target("address", direct(_address), texts, 6),
    ]


def _address(raw: bytes) -> None:
    """What a peer says is an address: first whether it looks like one, then as it is dialled."""
    address = raw.decode("utf-8", "replace")
    if is_dialable(address):
        groups_of(address.split("/")[2])
        parse_address(address)


class _Gossip:
    """The reader of RPCs of a host that listens to one topic; every RPC comes from a peer of its own."""

    def __init__(self) -> None:
        self._number = 0
        self._pubsub = self._fresh()

    def prepare(self, raw: bytes) -> Act:
        self._number += 1
        if self._number % 4096 == 0:
            self._pubsub = self._fresh()
        peer = ID(b"\x12\x20" + self._number.to_bytes(32, "big"))

        def act() -> None:
            with suppress(RefusedRpcError):
                driven(self._pubsub._take_rpc(peer, raw))

        return act

    def _fresh(self) -> VerdictPubsub:
        pubsub = Libp2pHost(NodeKey(bytes(32)), [])._pubsub
        pubsub._receivers[TOPIC] = (lambda peer, raw: GossipVerdict.ACCEPT, lambda peer, raw: None)
        pubsub.mesh.pubsub = pubsub
        pubsub.mesh.mesh[TOPIC] = set()

        async def uncharged(peer: ID, cpu_seconds: float) -> None:
            """A peer that has to wait is read later, and not cheaper."""

        pubsub._charge = uncharged  # type: ignore[method-assign]
        return pubsub


def _message(data: bytes) -> rpc_pb2.Message:
    message = rpc_pb2.Message(from_id=_PEER.to_bytes(), data=data, seqno=bytes(8), topicIDs=[TOPIC])
    message.signature = _PAIR.private_key.sign(b"libp2p-pubsub:" + message.SerializeToString())
    return message


def _control() -> rpc_pb2.ControlMessage:
    return rpc_pb2.ControlMessage(
        ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[b"x" * 24, b"y"])],
        iwant=[rpc_pb2.ControlIWant(messageIDs=[b"x" * 24])],
        graft=[rpc_pb2.ControlGraft(topicID=TOPIC)],
        prune=[rpc_pb2.ControlPrune(topicID=TOPIC, backoff=2**63)],
    )


def _rpcs() -> list[bytes]:
    subscriptions = [rpc_pb2.RPC.SubOpts(subscribe=b, topicid=t) for b in (True, False) for t in (TOPIC, "other")]
    rpcs = [
        rpc_pb2.RPC(publish=[_message(b"one"), _message(b"two")]),
        rpc_pb2.RPC(subscriptions=subscriptions),
        rpc_pb2.RPC(control=_control()),
        rpc_pb2.RPC(publish=[_message(b"three")], subscriptions=subscriptions, control=_control()),
    ]
    return [rpc.SerializeToString() for rpc in rpcs]


def _full_rpc(random: Random) -> bytes:
    """As many of one thing as an RPC may hold."""
    draw = Extremes(random, 1.0 if random.random() < 0.1 else 0.02)
    rpc = rpc_pb2.RPC()
    match random.randrange(4):
        case 0:
            for _ in range(int(limits.GOSSIP_RPC_SUBSCRIPTIONS * draw.fullness)):
                rpc.subscriptions.add(
                    subscribe=random.random() < 0.5, topicid=draw.text(limits.GOSSIP_TOPIC_CHARACTERS)
                )
        case 1:
            ids = [draw.raw(24, 24) for _ in range(int(limits.GOSSIP_RPC_IDS * draw.fullness))]
            rpc.control.ihave.add(topicID=TOPIC, messageIDs=ids)
        case 2:
            for _ in range(int(limits.GOSSIP_RPC_CONTROLS * draw.fullness) - 1):
                rpc.control.prune.add(topicID=random.choice((TOPIC, draw.text(64))), backoff=draw.integer(0, 2**64 - 1))
        case _:
            rpc.publish.append(_message(draw.raw(0, limits.ANNOUNCEMENT_BYTES)))
    return rpc.SerializeToString()


class _Stream:
    """A stream of the DHT that gives these bytes, framed, and takes whatever is written."""

    def __init__(self, raw: bytes) -> None:
        self._left = length_prefixed(raw)
        self.muxed_conn = SimpleNamespace(peer_id=_PEER)
        self.metric_send_channel = None  # of the library's statistics

    async def read(self, n: int | None = None) -> bytes:
        piece, self._left = self._left[:n], self._left[n:] if n is not None else b""
        return piece

    async def write(self, raw: bytes) -> None:
        return

    async def close(self) -> None:
        return

    async def reset(self) -> None:
        return


class _Dht:
    """The DHT of a host that runs on no network."""

    def __init__(self) -> None:
        self._host = Libp2pHost(NodeKey(bytes(32)), [])
        self._dht = self._host._dht

        async def closest(key: bytes, count: int = 0) -> list[ID]:
            return [_PEER]

        async def no_peer(peer: ID, **options: Any) -> bool:
            return True

        cast(Any, self._dht.peer_routing).find_closest_peers_network = closest
        cast(Any, self._dht).add_peer = no_peer

    def answered(self, raw: bytes) -> Act:
        """The search for providers, where the peer that is asked answers this."""
        self._dht.provider_store = store = BoundedProviders(self._dht.host, self._dht.peer_routing)

        store.host = self._peers_that_answer(raw)
        return lambda: trio.run(partial(find_providers, self._dht, KEY, limit=32))

    def requested(self, raw: bytes) -> Act:
        """A request, and the search for providers after it."""
        self._dht.provider_store = BoundedProviders(self._dht.host, self._dht.peer_routing)

        async def act() -> None:
            await self._dht._do_handle_stream(cast(Any, _Stream(raw)))
            self._dht.provider_store.host = self._peers_that_answer(b"")
            await find_providers(self._dht, KEY, limit=32)

        return lambda: trio.run(act)

    def _peers_that_answer(self, raw: bytes) -> Any:
        """As the host, but every peer that is asked answers this."""

        async def new_stream(peer: ID, protocols: Iterable[str]) -> _Stream:
            return _Stream(raw)

        return SimpleNamespace(new_stream=new_stream, **_borrowed(self._host._host))


def _borrowed(host: Any) -> dict[str, Any]:
    names = ("get_id", "get_network", "get_peerstore", "get_addrs", "get_public_key", "get_private_key")
    return {name: getattr(host, name) for name in names if hasattr(host, name)}


def _peers(addresses: Iterable[bytes]) -> list[DhtMessage.Peer]:
    return [DhtMessage.Peer(id=_PEER.to_bytes(), addrs=list(addresses), connection=DhtMessage.ConnectionType.CONNECTED)]


def _answers(addresses: list[bytes]) -> list[bytes]:
    many = DhtMessage(
        type=DhtMessage.GET_PROVIDERS, key=KEY, providerPeers=_peers(addresses), closerPeers=_peers(addresses)
    )
    each = [DhtMessage(type=DhtMessage.GET_PROVIDERS, providerPeers=_peers([address])) for address in addresses]
    return [message.SerializeToString() for message in (many, *each)]


def _requests(addresses: list[bytes]) -> list[bytes]:
    kinds = (
        DhtMessage.ADD_PROVIDER,
        DhtMessage.GET_PROVIDERS,
        DhtMessage.FIND_NODE,
        DhtMessage.PING,
        DhtMessage.GET_VALUE,
    )
    return [DhtMessage(type=k, key=KEY, providerPeers=_peers(addresses)).SerializeToString() for k in kinds]


def _full_answer(addresses: list[bytes], random: Random) -> bytes:
    return _full(addresses, random, DhtMessage.GET_PROVIDERS, MESSAGE_BYTES)


def _full_request(addresses: list[bytes], random: Random) -> bytes:
    kind = random.choice((DhtMessage.ADD_PROVIDER, DhtMessage.GET_PROVIDERS, DhtMessage.FIND_NODE))
    return _full(addresses, random, kind, REQUEST_BYTES)


def _full(addresses: list[bytes], random: Random, kind: Any, most_bytes: int) -> bytes:
    """A message near the most bytes: of one long id, of many ids, or of many addresses."""
    message = DhtMessage(type=kind, key=KEY)
    most_bytes -= 100
    match random.randrange(3):
        case 0:
            lengths, of_each = [most_bytes], []
        case 1:
            lengths, of_each = [34] * (most_bytes // 60), addresses[:1]
        case _:
            lengths, of_each = [34], [random.choice(addresses) for _ in range(most_bytes // 60)]
    for length in lengths:
        peer = DhtMessage.Peer(id=random.randbytes(length) if len(of_each) < 2 else _PEER.to_bytes(), addrs=of_each)
        (message.providerPeers if random.random() < 0.9 else message.closerPeers).append(peer)
    return message.SerializeToString()[: most_bytes + 100]
