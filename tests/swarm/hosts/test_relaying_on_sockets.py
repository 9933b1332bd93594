"""Relays on real sockets: what they see, hostile ones and hostile clients, and the way to a direct connection."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, Status, StopMessage

from protocol.errors import DeadlineError, StarlingError, UnreachableError
from protocol.identity import NodeKey
from swarm.host import GossipVerdict, Stream
from swarm.hosts.libp2p import punch_bounds
from swarm.hosts.libp2p.connecting import listening
from swarm.hosts.libp2p.connecting.dialling import parse_address
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.libp2p.libp2p_stream import Libp2pStream
from swarm.hosts.libp2p.relaying import traversal
from swarm.hosts.libp2p.relaying.circuit_messages import (
    HOP_PROTOCOL,
    MESSAGE_BYTES,
    STOP_PROTOCOL,
    receive_message,
    send_message,
)
from tests.swarm.conftest import Libp2pWorld, play
from tests.swarm.hosts.test_refusals_on_sockets import STRANGER, US, member

LEFT_BEHIND = 8  # a leak of one object a turn is seen among what comes and goes by itself
THIRD, FOURTH = (NodeKey(bytes([number]) * 32) for number in (9, 10))


async def relayed(world: Any, tasks: trio.Nursery) -> list[Any]:
    """Three hosts of which the last two are connected through the first."""
    relay, one, other = await world.start(tasks, 3)
    await place(relay, one)
    await other.connect(one.addresses()[0], deadline_seconds=10)
    return [relay, one, other]


async def place(relay: Any, host: Any) -> None:
    relay.serve_as_relay(lambda peer: True)
    await host.connect(relay.addresses()[0], deadline_seconds=10)
    await host.reserve(relay.peer_id, deadline_seconds=10)


def test_a_relay_sees_none_of_what_passes(tell_on_sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[bytes] = []
    send = Libp2pStream.send

    async def note(stream: Any, payload: bytes) -> None:
        passed.append(payload)
        await send(stream, payload)

    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one, other = await relayed(world, tasks)
        pass_on = relay._traversal.relay._pass

        async def watched(circuit: Any, source: Stream, sink: Stream) -> None:
            monkeypatch.setattr(Libp2pStream, "send", note)
            await pass_on(circuit, source, sink)

        relay._traversal.relay._pass = watched
        await other.disconnect(one.peer_id)
        await world.eventually(lambda: not one.is_relayed(other.peer_id))
        await other.connect(one.addresses()[0], deadline_seconds=10)
        secret = b"nobody else reads this" * 20
        assert await world.exchange(other, one.peer_id, secret) == secret
        through_relay = b"".join(piece for piece in passed if secret[:22] not in piece)
        assert len(through_relay) > 2 * len(secret)
        assert relay.relaying().relayed_bytes > 2 * len(secret)
        assert b"nobody else" not in through_relay
        assert b"/noise" in through_relay, "what the relay passed on was watched"

    tell_on_sockets(story)


def test_members_of_a_private_cluster_pass_its_door_through_a_relay_and_others_do_not() -> None:
    class PrivateWorld(Libp2pWorld):
        def __init__(self) -> None:
            super().__init__()
            strangers_door = member(
                STRANGER, shown=US
            )  # it holds the key of the network, and no certificate of its own
            members = [(key, member(key)) for key in (US, THIRD, FOURTH)]
            self._left = [*members, (STRANGER, strangers_door)]

        def make(self) -> Libp2pHost:
            key, door = self._left.pop(0)
            return Libp2pHost(key, ["/ip4/127.0.0.1/tcp/0"], handshake=door)

    async def story() -> None:
        world = PrivateWorld()
        async with trio.open_nursery() as tasks:
            relay, one, other, stranger = await world.start(tasks, 4)
            await place(relay, one)
            await other.connect(one.addresses()[0], deadline_seconds=10)
            assert other.is_relayed(one.peer_id)
            assert await world.exchange(other, one.peer_id, b"among members") == b"among members"
            outcome = []
            for address in (relay.addresses()[0], one.addresses()[0]):
                with pytest.raises(UnreachableError):
                    await stranger.connect(address, deadline_seconds=10)
                outcome.append(stranger.peers())
            assert outcome == [[], []]
            assert set(one.peers()) == {relay.peer_id, other.peer_id}
            tasks.cancel_scope.cancel()

    trio.run(story)


@pytest.mark.parametrize(
    "said",
    [b"\xff\xff\xff\xff\xff\xff", b"\x05\xff\xff\xff\xff\xff", b"\x00", bytes([0x80, 0x40]) + bytes(MESSAGE_BYTES * 2)],
)
def test_rubbish_to_a_relay_ends_the_stream_alone(tell_on_sockets, said: bytes) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one = await world.start(tasks, 2)
        await place(relay, one)
        stream = await one.open_stream(relay.peer_id, HOP_PROTOCOL, deadline_seconds=10)
        await stream.send(said)
        await stream.close()
        with pytest.raises(StarlingError):
            while await stream.receive(1000):
                pass
            raise UnreachableError("the relay ended the stream")
        assert await one.reserve(relay.peer_id, deadline_seconds=10) > 0
        assert not world.bugs

    tell_on_sockets(story)


@pytest.mark.parametrize("peer", [b"", b"\x00", bytes(3000), b"\x00\x24\x08\x01\x12\x20" + bytes(32)])
def test_a_relay_is_asked_for_what_is_no_peer(tell_on_sockets, peer: bytes) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one = await world.start(tasks, 2)
        await place(relay, one)
        stream = await one.open_stream(relay.peer_id, HOP_PROTOCOL, deadline_seconds=10)
        await send_message(stream, HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=peer)))
        reply = await receive_message(stream, HopMessage)
        assert reply.status == Status.NO_RESERVATION
        await stream.reset()

    tell_on_sockets(story)


def test_a_connection_is_taken_only_from_a_relay_at_which_we_have_a_place(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.start(tasks, 2)
        await one.connect(other.addresses()[0], deadline_seconds=10)
        stream = await one.open_stream(other.peer_id, STOP_PROTOCOL, deadline_seconds=10)
        await send_message(stream, StopMessage(type=StopMessage.CONNECT, peer=PeerId(id=b"x")))
        reply = await receive_message(stream, StopMessage)
        assert reply.status == Status.PERMISSION_DENIED
        await stream.reset()

    tell_on_sockets(story)


def test_a_relay_that_offers_rubbish_as_a_connection_costs_the_connection_alone(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one = await world.start(tasks, 2)
        await place(relay, one)
        stream = await relay.open_stream(one.peer_id, STOP_PROTOCOL, deadline_seconds=10)
        await send_message(stream, StopMessage(type=StopMessage.CONNECT, peer=PeerId(id=b"x")))
        assert (await receive_message(stream, StopMessage)).status == Status.OK
        await stream.send(bytes(1000))
        await world.eventually(lambda: one.faults["unreachable"] > 0)
        assert list(one.peers()) == [relay.peer_id]
        assert not world.bugs

    tell_on_sockets(story)


@pytest.mark.parametrize("agrees", [False, True], ids=["before its answer", "after its answer"])
def test_a_relay_that_stalls_ends_at_the_deadline(tell_on_sockets, agrees: bool) -> None:
    async def stall(stream: Stream) -> None:
        await receive_message(stream, HopMessage)
        if agrees:
            await send_message(stream, HopMessage(type=HopMessage.STATUS, status=Status.OK))
        await trio.sleep_forever()

    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one = await world.start(tasks, 2)
        relay.handle(HOP_PROTOCOL, stall)
        target = f"{relay.addresses()[0]}/p2p-circuit/p2p/{NodeKey.generate().peer_id}"
        with pytest.raises(DeadlineError):
            await one.connect(target, deadline_seconds=1)
        assert list(one.peers()) == [relay.peer_id]

    tell_on_sockets(story)


def test_a_relay_that_connects_us_to_somebody_else_is_found_out(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one, other = await world.start(tasks, 3)
        await place(relay, one)
        reserved = relay._traversal.relay.book.is_reserved
        relay._traversal.relay.book.is_reserved = lambda peer, now_seconds: True
        relay._traversal.relay._open_onward = partial(_open_to, relay._traversal.relay._open_onward, one.peer_id)
        relay._traversal.relay._seen_at = lambda peer: ("127.0.0.1", 1)
        with pytest.raises(UnreachableError):
            await other.connect(
                f"{relay.addresses()[0]}/p2p-circuit/p2p/{NodeKey.generate().peer_id}", deadline_seconds=10
            )
        assert list(other.peers()) == [relay.peer_id]
        assert reserved(one.peer_id, trio.current_time())

    async def _open_to(real: Any, target: str, _asked: str, *rest: Any) -> Any:
        return await real(target, *rest)

    tell_on_sockets(story)


def test_a_relay_sees_a_peer_where_it_connected_last(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one = await world.start(tasks, 2)
        await place(relay, one)
        first = relay._traversal._seen_at(one.peer_id)
        where, peer = parse_address(relay.addresses()[0])
        await one._network.dial_addr(where, peer)  # as after a change of address, before the loss is noticed
        await world.eventually(lambda: relay._traversal._seen_at(one.peer_id) != first)
        await one.reserve(relay.peer_id, deadline_seconds=10)
        assert first not in one._traversal._own_addresses()

    tell_on_sockets(story)


def test_a_place_is_taken_over_a_connection_that_the_library_dialled(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one = await world.start(tasks, 2)
        relay.serve_as_relay(lambda peer: True)
        where, peer = parse_address(relay.addresses()[0])
        one._network.peerstore.add_addrs(peer, [where], 60)
        await one._network.dial_peer(peer)  # as its DHT does where a connection has ended
        assert list(one.relaying().dialled) == [relay.peer_id]
        assert await one.reserve(relay.peer_id, deadline_seconds=10) > 0
        assert f"{relay.addresses()[0]}/p2p-circuit/p2p/{one.peer_id}" in one.addresses()
        await world.eventually(lambda: list(relay.peers()) == [one.peer_id])
        assert not relay.relaying().dialled
        await one.disconnect(relay.peer_id)
        assert not one.relaying().dialled

    tell_on_sockets(story)


def held() -> Counter[str]:
    """Returns how many objects of the host's code there are, by type.

    Scopes are left out: trio forgets those that have ended a thousand at a time.
    """
    gc.collect()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    ours = ("swarm.", "libp2p.", "trio.")
    return Counter({name: n for name, n in types.items() if name.startswith(ours) and name != "trio.CancelScope"})


def test_renewed_places_ended_circuits_and_peers_that_come_again_leave_nothing_behind(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one, other = await world.start(tasks, 3)
        await place(relay, one)
        await other.connect(relay.addresses()[0], deadline_seconds=10)

        async def do(times: int) -> None:
            for _ in range(times):
                await one.reserve(relay.peer_id, deadline_seconds=10)
                await other.connect(one.addresses()[0], deadline_seconds=10)
                assert await world.exchange(other, one.peer_id, b"through the relay") == b"through the relay"
                await other.disconnect(one.peer_id)
                await other.disconnect(relay.peer_id)
                await world.eventually(lambda: list(relay.peers()) == [one.peer_id] and not relay.relaying().circuits)
                await other.connect(relay.addresses()[0], deadline_seconds=10)

        await do(2)
        await trio.sleep(1.0)
        before = held()
        await do(LEFT_BEHIND)
        for _ in range(10):  # streams end within five seconds
            left = {name: more for name, more in (held() - before).items() if more >= LEFT_BEHIND}
            if not left:
                break
            await trio.sleep(1.0)
        assert not left

    tell_on_sockets(story)


def test_a_direct_connection_takes_the_place_of_the_relayed_one_and_gossip_goes_on(
    tell_on_sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punch_bounds, "is_public", lambda ip: True)  # loopback in place of the internet
    monkeypatch.setattr(listening, "is_public", lambda ip: True)
    monkeypatch.setattr(traversal, "MOVE_SECONDS", 0.1)

    async def story(world: Any, tasks: trio.Nursery) -> None:
        heard: list[bytes] = []
        relay, one, other = await world.start(tasks, 3)
        for host in (one, other):
            await host.subscribe("test", lambda peer, message: GossipVerdict.ACCEPT, lambda peer, m: heard.append(m))
        await place(relay, one)
        await other.connect(relay.addresses()[0], deadline_seconds=10)
        await other.connect(one.addresses()[0], deadline_seconds=10)
        assert other.is_relayed(one.peer_id)
        await world.eventually(lambda: not other.is_relayed(one.peer_id) and not one.is_relayed(other.peer_id))
        await world.eventually(lambda: relay.relaying().circuits == 0)
        for host in (one, other):
            assert list(host.relaying().dialled) == [relay.peer_id], "who met through a relay gives no place"
        passed = relay.relaying().relayed_bytes
        await other.disconnect(relay.peer_id)
        await one.disconnect(relay.peer_id)
        while len(heard) < 1:  # until the mesh has formed anew
            await other.publish("test", b"%d" % trio.current_time())
            await trio.sleep(0.3)
        assert await world.exchange(one, other.peer_id, b"directly") == b"directly"
        assert relay.relaying().relayed_bytes == passed

    tell_on_sockets(story)


def test_the_listening_port_is_shared_with_dials_and_with_no_other_listener() -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        (one,) = await world.start(tasks, 1)
        where = one.addresses()[0].rpartition("/p2p/")[0]
        second = Libp2pHost(NodeKey.generate(), [where])
        async with AsyncExitStack() as stack:
            with pytest.raises(StarlingError, match="cannot listen"):
                await stack.enter_async_context(second.run())

    play(story, world="libp2p")
