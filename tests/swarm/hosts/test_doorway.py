"""Connections that never finish a handshake keep nobody out: not by number, not by address, with a key or without."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import anyio
import pytest
import trio

from protocol.identity import NodeKey
from swarm.address_groups import groups_of, most_crowded
from swarm.hosts.libp2p.containment import Failures
from swarm.hosts.libp2p.doorway import HANDSHAKE_PLACES, SILENT_PLACES, WaitingRoom
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from tests.swarm.hosts.test_private_network import OURS, Everybody

GREETING = b"\x13/multistream/1.0.0\n"


class Visitor:
    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.is_dropped = False

    def get_remote_address(self) -> tuple[str, int]:
        return self.ip, 1

    def drop(self) -> None:
        self.is_dropped = True


def test_newcomer_to_a_full_room_pushes_out_the_oldest_of_the_most_crowded_address() -> None:
    failures = Failures()
    room: WaitingRoom[Visitor] = WaitingRoom(4, "room", failures)
    ips = ["192.0.2.1", "198.51.100.1", "198.51.100.2", "198.51.100.2", "203.0.113.1"]
    visitors = [Visitor(ip) for ip in ips]
    for visitor in visitors:
        room.enter(visitor)
    assert [visitor.is_dropped for visitor in visitors] == [False, False, True, False, False]
    assert failures.counts == {"room": 1} and len(room) == 4


def test_strangers_at_one_address_push_out_nobody_at_another() -> None:
    room: WaitingRoom[Visitor] = WaitingRoom(8, "room", Failures())
    honest = Visitor("192.0.2.1")
    room.enter(honest)
    for number in range(1000):
        room.enter(Visitor(f"198.51.100.{number % 250}"))
    assert not honest.is_dropped and len(room) == 8


def test_visitor_that_left_frees_its_place() -> None:
    room: WaitingRoom[Visitor] = WaitingRoom(1, "room", Failures())
    first, second = Visitor("192.0.2.1"), Visitor("192.0.2.1")
    with room.place_for(first):
        pass
    room.enter(second)
    assert not first.is_dropped and not second.is_dropped


def test_groups_are_the_networks_that_one_party_can_hold() -> None:
    assert groups_of("192.0.2.7") == ("192.0.2.0/24", "192.0.2.7/32")
    assert groups_of("::ffff:192.0.2.7") == groups_of("192.0.2.7")
    assert groups_of("2001:db8:1:2:3::4") == ("2001:db8:1::/48", "2001:db8:1:2::/64")
    assert groups_of("fe80::1%eth0") == ("fe80::/48", "fe80::/64")
    assert groups_of("nonsense") == ("nonsense", "nonsense")
    assert most_crowded("abc", [("x", "1"), ("y", "2"), ("y", "3")]) == ["b", "c"]
    assert most_crowded("", []) == []


@pytest.mark.parametrize("private", [False, True], ids=["open", "private"])
@pytest.mark.parametrize("first_bytes", [b"", GREETING], ids=["silent", "stalling"])
def test_honest_peer_joins_a_host_to_which_more_sockets_are_open_than_it_takes_connections(
    tell_on_sockets, private: bool, first_bytes: bytes
) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        def host(connections: int) -> Libp2pHost:
            handshake = Everybody(OURS) if private else None
            return Libp2pHost(
                NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"], connections=connections, handshake=handshake
            )

        victim, guest = host(4), host(4)
        port = int((await running(tasks, victim)).split("/")[4])
        await running(tasks, guest)
        async with AsyncExitStack() as sockets:
            for _ in range(12):
                socket = await sockets.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
                if first_bytes:
                    await socket.send_all(first_bytes)
            await guest.connect(victim.addresses()[0], deadline_seconds=10)
            await world.eventually(lambda: victim.peers() == [guest.peer_id])

    tell_on_sockets(story)


async def running(tasks: trio.Nursery, host: Libp2pHost) -> str:
    async def run(task_status: Any) -> None:
        async with host.run():
            task_status.started()
            await trio.sleep_forever()

    await tasks.start(run)
    return host.addresses()[0]


def test_no_more_silent_sockets_are_held_than_there_are_places_and_they_cost_no_handshake(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        (victim,) = await world.start(tasks, 1)
        port = int(victim.addresses()[0].split("/")[4])
        ended = 0

        async def hold_silently() -> None:
            nonlocal ended
            async with await trio.open_tcp_stream("127.0.0.1", port) as socket:
                await socket.receive_some()
                ended += 1

        for _ in range(SILENT_PLACES + 20):
            tasks.start_soon(hold_silently)
        await world.eventually(lambda: ended == 20)
        assert len(victim._doorway.silent) == SILENT_PLACES
        assert len(victim._doorway.handshaking) == 0 < HANDSHAKE_PLACES
        assert victim.failures.counts["silent connection"] == 20

    tell_on_sockets(story)


def test_silent_sockets_have_no_tasks_and_one_that_speaks_late_is_served(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        (victim,) = await world.start(tasks, 1)
        port = int(victim.addresses()[0].split("/")[4])
        before = trio.lowlevel.current_statistics().tasks_living
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(50)]
            await world.eventually(lambda: len(victim._doorway.silent) == 50)
            assert trio.lowlevel.current_statistics().tasks_living - before < 10
            silent[0].sendall(GREETING)
            silent[1].close()
            await world.eventually(lambda: len(victim._doorway.handshaking) == 1)
            await world.eventually(lambda: len(victim._doorway.silent) == 48)

    tell_on_sockets(story)


def test_silent_socket_is_closed_after_its_time(tell_on_sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.hosts.libp2p.doorway.FIRST_BYTES_SECONDS", 0.05)

    async def story(world: Any, tasks: trio.Nursery) -> None:
        (victim,) = await world.start(tasks, 1)
        async with await trio.open_tcp_stream("127.0.0.1", int(victim.addresses()[0].split("/")[4])) as socket:
            assert await socket.receive_some() == b""

    tell_on_sockets(story)


def test_finished_handshake_gives_back_its_place(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.chain(tasks, 2)
        await world.eventually(lambda: other.peers() == [one.peer_id])
        with anyio.fail_after(10):
            await world.eventually(lambda: len(other._doorway.handshaking) == 0)
        assert await world.exchange(one, other.peer_id, b"still here") == b"still here"

    tell_on_sockets(story)
