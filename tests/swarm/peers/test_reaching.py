"""Nodes behind routers, in virtual time: they find out, take places at relays, and meet through these."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from protocol.errors import StarlingError
from swarm import api
from swarm.blobs.fetch_round import RELAYED_BLOB_BYTES
from swarm.peers import dial_back
from swarm.peers.reachability import ASK_AGAIN_SECONDS, Reach
from swarm.peers.reaching import TICK_SECONDS
from swarm.service import SwarmService
from tests.swarm.test_service import Swarm, content, fetch, play, seen, share, status


def reach(service: SwarmService) -> api.ReachStatus:
    return service.reaching.status()


def behind_router(swarm: Swarm, name: str, *known: SwarmService) -> AbstractAsyncContextManager[SwarmService]:
    return swarm.member(name, *known, host=swarm.network.host(name, can_be_dialled=False))


def test_two_nodes_behind_routers_meet_through_a_public_one_and_learn_from_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with (
            swarm.member("public") as public,
            behind_router(swarm, "one", public) as one,
            behind_router(swarm, "two", public) as two,
        ):
            await anyio.sleep(60.0)
            assert two.host.is_relayed(one.host.peer_id)
            assert reach(one).relays == (public.host.peer_id,)
            assert reach(one).relayed_peers == (two.host.peer_id,)
            assert reach(public).serves_as_relay
            assert not reach(one).serves_as_relay
            assert (await status(one)).reach == reach(one)
            assert reach(one).is_out_of_reach, "the one public peer that tried is enough"
            assert (
                "one peer has tried to reach this node, and could not; it is reached through 1 relay"
                in reach(one).in_words
            )
            await share(one, 1)
            await anyio.sleep(1.0)
            (fetched,) = await fetch(two, await seen(two))
            assert fetched.read() == content(1)
            large = one.store.put(bytes(RELAYED_BLOB_BYTES + 1))
            wanted = (api.Wanted(large, RELAYED_BLOB_BYTES + 1, (one.host.peer_id,)),)
            reply = await two.answer(api.Fetch(wanted, 5.0))
            assert isinstance(reply, api.FetchedList)
            assert not reply.fetched[0].is_here, "large blobs wait for a direct connection"

    play(story)


def test_a_node_that_two_peers_cannot_dial_says_so_and_takes_two_places(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with (
            swarm.member("a") as a,
            swarm.member("b", a) as b,
            behind_router(swarm, "inside", a, b) as node,
        ):
            await anyio.sleep(60.0)
            assert reach(node).reach == Reach.NOWHERE
            assert "forward TCP port 4001" in reach(node).in_words
            assert set(reach(node).relays) == {a.host.peer_id, b.host.peer_id}
            assert reach(a).reach == Reach.UNKNOWN or reach(a).reach == Reach.LOCAL_NETWORK

    play(story)


def test_a_node_whose_only_peer_is_too_busy_to_dial_it_takes_a_place_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial_back, "AT_ONCE", 0)

    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("door") as door, behind_router(swarm, "inside", door) as node:
            await anyio.sleep(3 * TICK_SECONDS)
            assert reach(node).reach == Reach.UNKNOWN
            assert reach(node).relays == (door.host.peer_id,)
            assert reach(node).serves_as_relay, "nothing speaks against it"
            monkeypatch.setattr(dial_back, "AT_ONCE", 16)
            await anyio.sleep(ASK_AGAIN_SECONDS + 3 * TICK_SECONDS)
            assert "could not; it is reached through 1 relay" in reach(node).in_words
            assert not reach(node).serves_as_relay

    play(story)


def test_a_place_is_taken_where_not_the_node_but_its_dht_dialled_the_relay(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("door") as door, behind_router(swarm, "inside") as node:
            await node.host.connect(door.host.addresses()[0], deadline_seconds=5.0)
            await anyio.sleep(30.0)
            assert reach(node).relays == (door.host.peer_id,)

    play(story)


def test_when_the_relay_leaves_another_takes_its_place(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with (
            swarm.member("a") as a,
            swarm.member("b", a) as b,
            swarm.member("c", a) as c,
            behind_router(swarm, "inside", a, b, c) as node,
        ):
            await anyio.sleep(60.0)
            first = reach(node).relays
            assert len(first) == 2
            gone = next(m for m in (a, b, c) if m.host.peer_id == first[0])
            gone.leave("done")
            await anyio.sleep(30.0)
            assert len(reach(node).relays) == 2
            assert gone.host.peer_id not in reach(node).relays

    play(story)


def test_a_place_is_taken_again_where_the_connection_to_the_relay_was_replaced_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with swarm.member("public") as public, behind_router(swarm, "inside", public) as node:
            await anyio.sleep(60.0 + TICK_SECONDS / 2)  # the node looks after both, not in between
            relay = public.host.peer_id
            assert reach(node).relays == (relay,)
            await node.host.disconnect(relay)
            await node.host.connect(public.host.addresses()[0], deadline_seconds=5)
            assert reach(public).reservations == 0
            await anyio.sleep(2 * TICK_SECONDS + 1.0)
            assert (reach(public).reservations, reach(node).relays) == (1, (relay,))

    play(story)


def test_an_open_swarm_relays_for_its_members_alone(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        stranger = swarm.network.host("stranger")
        async with swarm.member("a") as a, stranger.run():
            await stranger.connect(a.host.addresses()[0], deadline_seconds=5)
            await anyio.sleep(2.0)
            with pytest.raises(StarlingError):
                await stranger.reserve(a.host.peer_id, deadline_seconds=5)

    play(story)
