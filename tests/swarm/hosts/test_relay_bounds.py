"""What a relay gives away, and where holes are punched: the decisions."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, Status, StopMessage

from protocol.identity import PEER_ID_BYTES, NodeKey
from swarm.address_groups import is_public
from swarm.hosts.libp2p.punch_bounds import ADDRESSES, DIALS, DIALS_PER_IP, PunchBounds, punchable
from swarm.hosts.libp2p.relaying.circuit_messages import ADDRESSES_READ, packed, unpacked
from swarm.hosts.libp2p.relaying.relay import Relay
from swarm.hosts.libp2p.relaying.relay_book import (
    CIRCUIT_BYTES,
    CIRCUIT_SECONDS,
    CIRCUITS,
    CIRCUITS_PER_PEER,
    PEER_BURST_BYTES,
    PEER_BYTES_PER_SECOND,
    RESERVATION_SECONDS,
    RESERVATIONS,
    RESERVATIONS_PER_NETWORK,
    RelayBook,
)


def test_a_flood_of_reservations_from_one_network_leaves_places_for_others() -> None:
    book = RelayBook()
    flood = [book.reserve(f"flood {n}", "198.51.100.7", 0.0) for n in range(10 * RESERVATIONS)]
    assert sum(flood) == RESERVATIONS_PER_NETWORK
    assert book.reserve("honest", "203.0.113.1", 0.0)
    many = [book.reserve(f"peer {n}", f"network {n}", 0.0) for n in range(RESERVATIONS)]
    assert sum(many) == RESERVATIONS - RESERVATIONS_PER_NETWORK - 1
    assert book.reserve("honest", "203.0.113.1", 0.0), "a place is renewed where all are taken"


def test_a_reservation_ends_unless_it_is_renewed() -> None:
    book = RelayBook()
    book.reserve("a", "network", 0.0)
    assert book.is_reserved("a", RESERVATION_SECONDS - 1)
    book.reserve("a", "network", RESERVATION_SECONDS - 1)
    assert book.is_reserved("a", RESERVATION_SECONDS + 1)
    assert not book.is_reserved("a", 2 * RESERVATION_SECONDS)


def test_circuits_are_bounded_at_both_ends_and_over_all() -> None:
    book = RelayBook()
    from_one = [book.open("greedy", f"target {n}", 0.0) for n in range(100)]
    assert sum(c is not None for c in from_one) == CIRCUITS_PER_PEER
    to_one = [book.open(f"source {n}", "popular", 0.0) for n in range(100)]
    assert sum(c is not None for c in to_one) == CIRCUITS_PER_PEER
    for circuit in from_one:
        if circuit is not None:
            book.close(circuit)
    assert book.open("greedy", "target", 0.0) is not None
    for n in range(2 * CIRCUITS):
        book.open(f"s{n}", f"t{n}", 0.0)
    assert book.circuits == CIRCUITS


def test_a_circuit_ends_at_its_bytes_its_time_and_with_its_reservation() -> None:
    book = RelayBook()
    book.reserve("target", "network", 0.0)
    circuit = book.open("source", "target", 0.0)
    assert circuit is not None
    assert book.take(circuit, 1000, 0.0) == 0.0
    assert book.take(circuit, CIRCUIT_BYTES, 0.0) is None
    assert book.take(circuit, 1, CIRCUIT_SECONDS + 1) is None
    book.release("target")
    assert book.take(circuit, 1, 0.0) is None
    assert book.relayed_bytes == 1000


def test_what_a_peer_receives_is_paced_over_all_its_circuits() -> None:
    book = RelayBook()
    book.reserve("target", "network", 0.0)
    one, other = book.open("a", "target", 0.0), book.open("b", "target", 0.0)
    assert one is not None
    assert other is not None
    assert book.take(one, PEER_BURST_BYTES, 0.0) == 0.0
    assert book.take(other, PEER_BYTES_PER_SECOND, 0.0) == pytest.approx(1.0)


SEEN = ("203.0.113.5", 4001)


def test_a_hole_is_punched_only_where_the_relay_sees_the_peer() -> None:
    victims = [(f"198.51.100.{n}", 80) for n in range(50)]
    assert punchable(victims, SEEN) == [SEEN]
    assert punchable([("203.0.113.5", 30000)], SEEN) == [("203.0.113.5", 30000), SEEN]
    assert len(punchable([("203.0.113.5", port) for port in range(1, 1000)], SEEN)) == ADDRESSES
    assert punchable([SEEN], None) == []
    assert punchable([("203.0.113.5", 0), ("203.0.113.5", 70000)], SEEN) == [SEEN]


@pytest.mark.parametrize(
    "ip", ["10.1.2.3", "127.0.0.1", "192.168.1.1", "100.64.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255",
           "0.0.0.0", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:10.0.0.1", "", "no address", "1.2.3"]
)  # fmt: skip
def test_no_hole_is_punched_at_an_address_that_is_not_public(ip: str) -> None:
    assert not is_public(ip)
    assert punchable([(ip, 80)], (ip, 80)) == []


def test_one_address_and_all_together_are_dialled_seldom() -> None:
    bounds = PunchBounds()
    assert sum(bounds.take("203.0.113.5", 0.0) for _ in range(1000)) == DIALS_PER_IP
    bounds = PunchBounds()
    assert sum(bounds.take(f"203.0.{n % 256}.{n // 256}", 0.0) for n in range(2000)) == DIALS


def test_rubbish_for_addresses_is_ignored_and_thousands_are_cut_off() -> None:
    random = Random(0)
    rubbish = [random.randbytes(random.randrange(40)) for _ in range(500)]
    assert len(unpacked(rubbish)) <= ADDRESSES_READ
    assert unpacked(packed([SEEN, ("2001:db8::1", 1)])) == [SEEN, ("2001:db8::1", 1)]
    assert len(unpacked(packed([SEEN]) * 5000)) == ADDRESSES_READ


class Asking:
    """The stream of a peer that sends one message, and what it is answered."""

    peer, network = "asker", "198.51.100.7"

    def __init__(self, message: bytes) -> None:
        self._left = message
        self.answered = b""

    async def receive(self, max_bytes: int) -> bytes:
        piece, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return piece

    async def send(self, payload: bytes) -> None:
        self.answered += payload


def test_an_id_longer_than_any_peers_is_refused_before_it_is_written_as_text() -> None:
    looked_up: list[str] = []

    def seen_at(peer: str) -> tuple[str, int]:
        looked_up.append(peer)
        return SEEN

    async def opened(*_: Any, **__: Any) -> Any:
        raise AssertionError("nobody is to be reached")

    relay = Relay(opened, seen_at)
    relay.admits = lambda peer: True
    body = HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=bytes(PEER_ID_BYTES + 1))).SerializeToString()
    asking = Asking(bytes([len(body)]) + body)
    trio.run(relay.on_stream, asking)
    assert HopMessage.FromString(asking.answered[1:]).status == Status.NO_RESERVATION
    assert looked_up == [asking.peer]


class End:
    """The stream of one end of a circuit, which says what it is given and is silent then."""

    network = "198.51.100.7"

    def __init__(self, peer: str, says: list[bytes]) -> None:
        self.peer = peer
        self._says = says
        self.heard_bytes = 0
        self.is_reset = False

    async def receive(self, max_bytes: int) -> bytes:
        if not self._says:
            await trio.sleep_forever()
        if len(self._says[0]) <= max_bytes:
            return self._says.pop(0)
        piece, self._says[0] = self._says[0][:max_bytes], self._says[0][max_bytes:]
        return piece

    async def send(self, payload: bytes) -> None:
        self.heard_bytes += len(payload)

    async def reset(self) -> None:
        self.is_reset = True


def said(message: HopMessage | StopMessage) -> bytes:
    body = message.SerializeToString()
    return bytes([len(body)]) + body


def test_an_idle_circuit_takes_two_tasks_keeps_none_of_what_passed_and_ends_at_its_time() -> None:
    gone: list[int] = []

    class Piece(bytes):
        def __del__(self) -> None:
            gone.append(len(self))

    async def story() -> None:
        source, target = (NodeKey(bytes([number]) * 32).peer_id for number in (1, 2))
        asked = HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=ID.from_string(target).to_bytes()))
        agreed = StopMessage(type=StopMessage.STATUS, status=Status.OK)
        asking, reached = End(source, [said(asked), Piece(20_000)]), End(target, [said(agreed), Piece(30_000)])

        async def opened(*_: Any, **__: Any) -> Any:
            return reached

        relay = Relay(opened, lambda peer: SEEN)
        relay.admits = lambda peer: True
        relay.book.reserve(target, "network", trio.current_time())
        async with trio.open_nursery() as tasks:
            others = trio.lowlevel.current_statistics().tasks_living
            tasks.start_soon(relay.on_stream, asking)
            await trio.testing.wait_all_tasks_blocked()
            assert relay.book.circuits == 1
            assert trio.lowlevel.current_statistics().tasks_living == others + 2
            assert asking.heard_bytes >= 30_000
            assert reached.heard_bytes >= 20_000
            assert sorted(gone) == [20_000, 30_000]
            await trio.sleep(CIRCUIT_SECONDS - 1)
            assert relay.book.circuits == 1
            await trio.sleep(2)
            assert relay.book.circuits == 0
        assert asking.is_reset
        assert reached.is_reset

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
