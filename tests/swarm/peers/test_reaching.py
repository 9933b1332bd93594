"""Nodes behind routers, in virtual time: they find out, take places at relays, and meet through these."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from protocol.errors import StarlingError
from protocol.streams.dial_back_messages import DIAL_BACK_PROTOCOL, DialBackAnswer, DialBackQuestion
from protocol.streams.framing import framed_message
from swarm import api
from swarm.blobs.fetch_round import RELAYED_BLOB_BYTES
from swarm.host import Stream
from swarm.peers.dial_back import QUESTIONS, DialBack, ports_of
from swarm.peers.reachability import REPORT_SECONDS, Reach
from swarm.service import SwarmService
from tests.swarm.test_service import Swarm, content, fetch, play, seen, share, status


def reach(service: SwarmService) -> api.ReachStatus:
    return service.reaching.status()


def test_two_nodes_behind_routers_meet_through_a_public_one_and_learn_from_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        one_host, two_host = (swarm.network.host(name, can_be_dialled=False) for name in ("one", "two"))
        async with (
            swarm.member("public") as public,
            swarm.member("one", public, host=one_host) as one,
            swarm.member("two", public, host=two_host) as two,
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
                "the one peer that tried could not dial this node; it is reached through 1 relay" in reach(one).in_words
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
        inside = swarm.network.host("inside", can_be_dialled=False)
        async with (
            swarm.member("a") as a,
            swarm.member("b", a) as b,
            swarm.member("inside", a, b, host=inside) as node,
        ):
            await anyio.sleep(60.0)
            assert reach(node).reach == Reach.NOWHERE
            assert "forward TCP port 4001" in reach(node).in_words
            assert set(reach(node).relays) == {a.host.peer_id, b.host.peer_id}
            assert reach(a).reach == Reach.UNKNOWN or reach(a).reach == Reach.LOCAL_NETWORK

    play(story)


def test_when_the_relay_leaves_another_takes_its_place(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        inside = swarm.network.host("inside", can_be_dialled=False)
        async with (
            swarm.member("a") as a,
            swarm.member("b", a) as b,
            swarm.member("c", a) as c,
            swarm.member("inside", a, b, c, host=inside) as node,
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


def test_a_peer_that_asks_again_and_again_to_be_dialled_is_dialled_seldom(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        one, other = swarm.network.host("one"), swarm.network.host("other")
        async with one.run(), other.run():
            DialBack(one)
            asking = DialBack(other)
            await other.connect(one.addresses()[0], deadline_seconds=5)
            ports = ports_of(other.addresses())
            assert ports == (4001,)
            reached = [(await asking.ask(one.peer_id, ports)).reached for _ in range(3 * QUESTIONS)]
            assert reached == [True] * QUESTIONS + [None] * 2 * QUESTIONS
            await anyio.sleep(REPORT_SECONDS)
            assert (await asking.ask(one.peer_id, ports)).reached

    play(story)


@pytest.mark.parametrize(
    "answer",
    [
        framed_message(DialBackAnswer(True, "203.0.113.9" * 50, (4001,))),
        framed_message(DialBackAnswer(True, "203.0.113.9", (0,))),
        framed_message(DialBackQuestion((4001,))),
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02\xc1\xc1",
        b"",
    ],
)
def test_rubbish_for_an_answer_is_a_failure_of_the_peer(tmp_path: Path, answer: bytes) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        one, other = swarm.network.host("one"), swarm.network.host("other")

        async def answer_rubbish(stream: Stream) -> None:
            await stream.receive(1000)
            await stream.send(answer or b"\x00")

        async with one.run(), other.run():
            asking = DialBack(other)
            one.handle(DIAL_BACK_PROTOCOL, answer_rubbish)
            await other.connect(one.addresses()[0], deadline_seconds=5)
            with pytest.raises(StarlingError):
                await asking.ask(one.peer_id, (4001,))

    play(story)
