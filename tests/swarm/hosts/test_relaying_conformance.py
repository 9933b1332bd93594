"""The guarantees of hosts that are told where to take places: relays, and proving that a peer can be dialled."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from protocol.errors import DeadlineError, UnreachableError
from protocol.identity import NodeKey


def test_a_peer_is_proven_where_it_listens_and_nowhere_else(tell_relaying) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.chain(tasks, 2)
        address = other.addresses()[0]
        await one.prove(address, deadline_seconds=10)
        stranger = f"{address.rpartition('/p2p/')[0]}/p2p/{NodeKey.generate().peer_id}"
        with pytest.raises(UnreachableError):
            await one.prove(stranger, deadline_seconds=10)
        assert await world.exchange(one, other.peer_id, b"still here") == b"still here"

    tell_relaying(story)


def test_two_hosts_meet_through_a_relay_and_lose_each_other_with_it(tell_relaying) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one, other = await world.start(tasks, 3)
        relay.serve_as_relay(lambda peer: True)
        await one.connect(relay.addresses()[0], deadline_seconds=10)
        assert await one.reserve(relay.peer_id, deadline_seconds=10) > 60
        assert list(one.relaying().relays) == [relay.peer_id]
        (through,) = [a for a in one.addresses() if a == f"{relay.addresses()[0]}/p2p-circuit/p2p/{one.peer_id}"]
        assert await other.connect(through, deadline_seconds=10) == one.peer_id
        assert other.is_relayed(one.peer_id)
        assert not other.is_relayed(relay.peer_id)
        assert relay.relaying().reservations == 1
        assert other.remote_ip(one.peer_id) == ""
        assert await world.exchange(other, one.peer_id, b"hello") == b"hello"
        await world.eventually(lambda: one.is_relayed(other.peer_id))
        world.vanish(relay)
        await world.eventually(lambda: not one.peers() and not other.peers())
        assert through not in one.addresses()

    tell_relaying(story)


def test_a_place_ends_with_the_connection_of_the_peer_that_has_it(tell_relaying) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one = await world.start(tasks, 2)
        relay.serve_as_relay(lambda peer: True)
        await one.connect(relay.addresses()[0], deadline_seconds=10)
        await one.reserve(relay.peer_id, deadline_seconds=10)
        assert relay.relaying().reservations == 1
        await one.disconnect(relay.peer_id)
        await world.eventually(lambda: relay.relaying().reservations == 0)

    tell_relaying(story)


def test_a_place_that_ended_with_its_connection_does_not_come_back_with_another_one(tell_relaying) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one = await world.start(tasks, 2)
        relay.serve_as_relay(lambda peer: True)
        await one.connect(relay.addresses()[0], deadline_seconds=10)
        await one.reserve(relay.peer_id, deadline_seconds=10)
        await one.disconnect(relay.peer_id)
        await world.eventually(lambda: relay.relaying().reservations == 0)
        await one.connect(relay.addresses()[0], deadline_seconds=10)
        assert list(one.relaying().relays) == []
        assert not [address for address in one.addresses() if "p2p-circuit" in address]

    tell_relaying(story)


def test_a_relay_serves_those_alone_whom_it_admits(tell_relaying) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one, other = await world.start(tasks, 3)
        for host in (one, other):
            await host.connect(relay.addresses()[0], deadline_seconds=10)
        with pytest.raises(UnreachableError):
            await one.reserve(relay.peer_id, deadline_seconds=10)
        relay.serve_as_relay(lambda peer: peer == one.peer_id)
        await one.reserve(relay.peer_id, deadline_seconds=10)
        with pytest.raises(UnreachableError):
            await other.reserve(relay.peer_id, deadline_seconds=10)
        with pytest.raises(UnreachableError):
            await other.connect(one.addresses()[0], deadline_seconds=10)
        assert list(one.peers()) == [relay.peer_id]

    tell_relaying(story)


def test_no_place_is_taken_at_a_peer_that_dialled_us(tell_relaying) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.start(tasks, 2)
        one.serve_as_relay(lambda peer: True)
        await one.connect(other.addresses()[0], deadline_seconds=10)
        await world.eventually(lambda: bool(other.peers()))
        with pytest.raises(UnreachableError, match="did not dial"):
            await other.reserve(one.peer_id, deadline_seconds=10)

    tell_relaying(story)


def test_nobody_is_reached_through_a_relay_at_which_it_has_no_place(tell_relaying) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        relay, one, other = await world.start(tasks, 3)
        relay.serve_as_relay(lambda peer: True)
        await one.connect(relay.addresses()[0], deadline_seconds=10)
        with pytest.raises(UnreachableError, match="no place"):
            await other.connect(f"{relay.addresses()[0]}/p2p-circuit/p2p/{one.peer_id}", deadline_seconds=10)
        twice = f"{relay.addresses()[0]}/p2p-circuit/p2p/{one.peer_id}/p2p-circuit/p2p/{other.peer_id}"
        with pytest.raises(UnreachableError):
            await one.connect(twice, deadline_seconds=10)

    tell_relaying(story)


def test_a_host_behind_a_simulated_router_is_dialled_by_nobody() -> None:
    from tests.swarm.conftest import SimulatedWorld

    async def main() -> None:
        world = SimulatedWorld()
        inside, outside = world.network.host("inside", can_be_dialled=False), world.make()
        async with inside.run(), outside.run():
            for attempt in (outside.connect, outside.prove):
                with pytest.raises(DeadlineError):
                    await attempt(inside.addresses()[0], deadline_seconds=1)
            await partial(inside.connect, outside.addresses()[0], deadline_seconds=10)()
            assert list(outside.peers()) == [inside.peer_id]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_routers_address_is_announced_beside_ones_own(tell_relaying) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        (one,) = await world.start(tasks, 1)
        own, router = list(one.addresses()), f"/ip4/203.0.113.1/tcp/4001/p2p/{one.peer_id}"
        one.announce_also([router])
        assert sorted(one.addresses()) == sorted([*own, router])
        one.announce_also([])
        assert list(one.addresses()) == own

    tell_relaying(story)
