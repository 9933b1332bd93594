"""How nodes are found and reached: dialling back, the manifest of a swarm, claimed addresses, relays and punches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from libp2p.abc import INetConn
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, Reservation, Status, StopMessage
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch

from protocol import limits, wire
from protocol.errors import UnreachableError
from protocol.identity import NodeKey
from protocol.manifest import Manifest
from protocol.messages import Heartbeat
from protocol.streams.dial_back_messages import DialBackAnswer, DialBackQuestion, decode_dial_back_message
from protocol.streams.manifest_messages import decode_manifest_of
from scripts.attacks.fuzzing.extremes import Extremes
from scripts.attacks.fuzzing.measuring import Act
from scripts.attacks.fuzzing.messages import one_of
from scripts.attacks.fuzzing.targets import DrawnStream, Target, all_of, direct, in_virtual_time, length_prefixed
from swarm.hosts.libp2p.connecting.dialling import parse_address
from swarm.hosts.libp2p.containment import Failures
from swarm.hosts.libp2p.punching import Punching
from swarm.hosts.libp2p.relaying.circuit_messages import MESSAGE_BYTES, packed
from swarm.hosts.libp2p.relaying.circuits import Circuits, RelayPlace
from swarm.hosts.libp2p.relaying.relay import Relay
from swarm.peers.claimed_addresses import claimed_addresses, claims_of
from swarm.peers.discovery import AddressBook, AddressSource
from swarm.peers.reachability import DialReport, judged

RELAY = NodeKey(bytes(31) + b"\x07").peer_id
OTHER = NodeKey(bytes(31) + b"\x08").peer_id
SEEN_AT = ("198.51.100.7", 4001)
PUBLIC = ("9.9.9.9", 4001)
MANIFEST = Manifest("стая", (("chain_sum", 1, b"\x01" * 16), ("b", 2, b"\x02" * 16)))
_FRESH_EVERY = 512  # inputs between two relays
_CIRCUIT_FIELDS = 40  # bytes of a circuit message beside its id and addresses


def reaching_targets() -> list[Target]:
    hop, stop, punch = _Relayed().hop, _Relayed().stop, _Relayed().punch
    kinds = (DialBackQuestion, DialBackAnswer)
    dial_backs = [
        DialBackQuestion((4001, 1)),
        DialBackAnswer(True, "198.51.100.7", (4001,)),
        DialBackAnswer(False, "", ()),
    ]
    heartbeats = [_heartbeat(("/ip4/9.9.9.9/tcp/4001", f"/ip4/9.9.9.8/tcp/1/p2p/{RELAY}/p2p-circuit")), _heartbeat(())]
    return [
        Target("dialling back", direct(_dialled_back), [msgspec.msgpack.encode(m) for m in dial_backs], 8,
               one_of(*kinds, most=limits.DIAL_BACK_BYTES), 4),
        Target("manifest that was asked for", direct(partial(decode_manifest_of, swarm_id=MANIFEST.swarm_id)),
               [MANIFEST.encode(), Manifest("b", (("b", 2, bytes(16)),)).encode()], 6,
               one_of(Manifest, most=limits.MANIFEST_BYTES), 2),
        Target("claimed addresses", _claimed, heartbeats, 4, _extreme_claims, 3),
        Target("request to a relay", hop, [m.SerializeToString() for m in _hops()], 0.5, _full_hop, 0.5),
        Target("answer or offer of a relay", stop, [m.SerializeToString() for m in (*_hops(), *_stops())], 0.5,
               _full_stop, 0.5),
        Target("agreement on a punch", punch, [m.SerializeToString() for m in _punches()], 0.5, _full_punch, 0.5),
    ]  # fmt: skip


def _dialled_back(raw: bytes) -> None:
    """Decodes a message, and lets an answer decide whether this node can be dialled."""
    kind: Any = (DialBackQuestion, DialBackAnswer)[sum(raw[:2]) % 2]
    message = decode_dial_back_message(raw, kind)
    if isinstance(message, DialBackAnswer):
        report = DialReport(RELAY, 0.0, message.seen_ip, message.dialled or None, (*message.reached, 0)[0])
        judged(0.0, [report, replace(report, peer=OTHER)], ["10.0.0.2"])


# What heartbeats claim


def _heartbeat(addresses: tuple[str, ...]) -> bytes:
    beat = Heartbeat("ann", "1", "wren", bytes(16), bytes(16), 1, 1, "learning", 1.0, 1, 1, (), addresses=addresses)
    return msgspec.msgpack.encode(beat)


def _claimed(raw: bytes) -> Act:
    """Lets a heartbeat be dialled, as far as an address is read."""

    def act() -> None:
        beat = wire.decode(raw, Heartbeat, max_bytes=limits.ANNOUNCEMENT_BYTES)
        book = AddressBook()
        claims = claimed_addresses(OTHER, beat)
        for address in claims:
            book.add(address, AddressSource.PEER, teller=OTHER)
        for candidate in book.of(OTHER):
            parse_address(candidate.address)
        claims_of(claims, OTHER)

    return act


def _extreme_claims(random: Random) -> bytes:
    draw = Extremes(random, 1.0)
    count = random.choice((1, limits.ADDRESSES_PER_HEARTBEAT))
    return _heartbeat(tuple(_claim(random, draw)[: limits.ADDRESS_CHARACTERS] for _ in range(count)))


def _claim(random: Random, draw: Extremes) -> str:
    ip = random.choice(("9.9.9.9", "2001:4860::8", "::ffff:9.9.9.9", "fe80::1%eth0", "٣.1.1.1", "", draw.text(64)))
    port = random.choice(("4001", "0", "65536", "9" * 40, "-1", "١", ""))
    end = random.choice(("", f"/p2p/{RELAY}/p2p-circuit", "/p2p-circuit" * 20, "/p2p//p2p-circuit", "/quic-v1"))
    return f"/{random.choice(('ip4', 'ip6', 'dns', 'ip6zone'))}/{ip}/tcp/{port}{end}"


# Relays


class _Relayed:
    """A relay, a host that takes places at relays, and one that punches holes: on no network, each peer a drawn one."""

    def __init__(self) -> None:
        self._inputs = 0
        self._relay = self._fresh()

    def _fresh(self) -> Relay:
        async def opened(peer: str, protocol: str, *, deadline_seconds: float) -> Any:
            return DrawnStream(self._onward, peer=peer)

        self._onward = b""
        relay = Relay(opened, lambda peer: SEEN_AT)
        relay.admits = lambda peer: True
        relay.book.reserve(OTHER, "198.51.100.0", 0.0)
        return relay

    def hop(self, raw: bytes) -> Act:
        """A request, where the host that is asked for answers with the same bytes."""
        self._inputs += 1
        if self._inputs % _FRESH_EVERY == 0:
            self._relay = self._fresh()
        self._onward = length_prefixed(raw)
        asker = NodeKey(self._inputs.to_bytes(32, "big")).peer_id if self._inputs % 8 == 0 else RELAY
        return lambda: in_virtual_time(partial(self._relay.on_stream, DrawnStream(length_prefixed(raw), peer=asker)))

    def stop(self, raw: bytes) -> Act:
        """What a relay answers to a reservation and to a dial, and what it offers."""
        content = length_prefixed(raw)

        async def opened(peer: str, protocol: str, *, deadline_seconds: float) -> Any:
            return DrawnStream(content, peer=peer)

        async def ended(connection: RawConnection, *_: Any) -> Any:
            await connection.close()
            return SimpleNamespace(peer_id=ID.from_string(OTHER))

        network: Any = SimpleNamespace(
            connections={ID.from_string(OTHER): []}, upgrade_outbound_raw_conn=ended, upgrade_inbound_raw_conn=ended
        )

        circuits, to_relay = Circuits(network, opened, lambda peer, dialled: None), cast(INetConn, None)
        circuits.places[RELAY] = RelayPlace("/ip4/9.9.9.9/tcp/1", 1e9, SEEN_AT, to_relay)
        return lambda: all_of(
            lambda: in_virtual_time(lambda: circuits.on_stop(DrawnStream(content, peer=RELAY))),
            lambda: in_virtual_time(lambda: circuits.dial(RELAY, ID.from_string(OTHER))),
            lambda: in_virtual_time(lambda: circuits.reserve(RELAY, "/ip4/9.9.9.9/tcp/1", to_relay, 10.0)),
        )

    def punch(self, raw: bytes) -> Act:
        """Two messages of the other side, when it begins and when we do; every dial fails."""
        content = length_prefixed(raw) * 2

        async def opened(peer: str, protocol: str, *, deadline_seconds: float) -> Any:
            return DrawnStream(content, peer=peer)

        async def nobody(*_: Any) -> None:
            raise UnreachableError("nobody is there")

        network: Any = SimpleNamespace(dial_addr=nobody, dial_addr_as_responder=nobody)

        punching = Punching(
            network, opened, Failures(), is_relayed=lambda peer: True, seen_at=lambda peer: PUBLIC,
            own_addresses=lambda: [PUBLIC], source_of=lambda ip: None,
        )  # fmt: skip
        return lambda: all_of(
            lambda: in_virtual_time(lambda: punching.on_stream(DrawnStream(content, peer=OTHER))),
            lambda: in_virtual_time(lambda: punching._agree_and_dial(OTHER, None)),
        )


def _peer(addresses: Iterable[bytes]) -> PeerId:
    return PeerId(id=ID.from_string(OTHER).to_bytes(), addrs=list(addresses))


def _hops() -> list[HopMessage]:
    seen = _peer(packed([SEEN_AT, ("2001:4860::8", 1)]))
    return [
        HopMessage(type=HopMessage.RESERVE),
        HopMessage(type=HopMessage.CONNECT, peer=seen),
        HopMessage(type=HopMessage.STATUS, status=Status.OK, peer=seen, reservation=Reservation(expire=2**62)),
        HopMessage(type=HopMessage.STATUS, status=Status.RESERVATION_REFUSED),
    ]


def _stops() -> list[StopMessage]:
    seen = _peer(packed([SEEN_AT]))
    return [
        StopMessage(type=StopMessage.CONNECT, peer=seen),
        StopMessage(type=StopMessage.STATUS, status=Status.OK),
        StopMessage(type=StopMessage.STATUS, status=Status.CONNECTION_FAILED),
    ]


def _punches() -> list[HolePunch]:
    return [
        HolePunch(type=HolePunch.CONNECT, ObsAddrs=packed([PUBLIC, (PUBLIC[0], 1)])),
        HolePunch(type=HolePunch.SYNC),
    ]


def _addresses(random: Random, most_bytes: int) -> list[bytes]:
    """As many addresses as fit, or one that is as long."""
    if random.random() < 0.3:
        return [random.randbytes(most_bytes - 8)]
    ports = (0, 1, 65535)
    each = packed([(random.choice(("9.9.9.9", "2001:4860::8")), random.choice(ports)) for _ in range(4)])
    return [random.choice(each) for _ in range(most_bytes // 24)]


def _full_peer(random: Random) -> PeerId:
    room = MESSAGE_BYTES - _CIRCUIT_FIELDS
    if random.random() < 0.5:
        return PeerId(id=random.choice((b"\0", b"\xff", random.randbytes(1))) * (room - 8))
    return _peer(_addresses(random, room - 64))


def _full_hop(random: Random) -> bytes:
    kind = random.choice((HopMessage.RESERVE, HopMessage.CONNECT, HopMessage.STATUS))
    return HopMessage(type=kind, peer=_full_peer(random), status=Status.OK).SerializeToString()


def _full_stop(random: Random) -> bytes:
    if random.random() < 0.5:
        return HopMessage(type=HopMessage.STATUS, status=Status.OK, peer=_full_peer(random)).SerializeToString()
    return StopMessage(type=StopMessage.CONNECT, peer=_full_peer(random)).SerializeToString()


def _full_punch(random: Random) -> bytes:
    kind = random.choice((HolePunch.CONNECT, HolePunch.SYNC))
    return HolePunch(type=kind, ObsAddrs=_addresses(random, MESSAGE_BYTES - _CIRCUIT_FIELDS)).SerializeToString()
