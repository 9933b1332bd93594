"""A peer that only introduces and relays, in virtual time, among whole members of a swarm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from protocol.connections import connections_field
from protocol.errors import ConfigurationError
from protocol.messages import RELAYING
from protocol.streams.dial_back_messages import DIAL_BACK_PROTOCOL, DialBackAnswer
from protocol.streams.framing import framed_message
from swarm import api
from swarm.announcements.own_heartbeats import LEARNER_SILENT_SECONDS, OwnHeartbeats
from swarm.host import Stream
from swarm.peers.reachability import Reach
from swarm.relay_service import RelayService
from swarm.settings import ServiceSettings
from tests.swarm.test_service import Swarm, content, fetch, now_seconds, peer, play, seen, share

Event = tuple[str, dict[str, Any]]


@asynccontextmanager
async def relay_in(swarm: Swarm, home: Path) -> AsyncIterator[tuple[RelayService, list[Event]]]:
    await anyio.Path(home).mkdir()
    host, events = swarm.network.host("relay"), []
    service = RelayService(
        host,
        host.key,
        ServiceSettings(home=str(home), swarm_name="test", swarm_id="ab" * 16, name="relay"),
        wall_clock=now_seconds,
        random=Random(1),
        emit=lambda event, fields: events.append((event, dict(fields))),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        await service.started.wait()
        yield service, events
        tasks.cancel_scope.cancel()


def test_two_nodes_behind_routers_that_know_a_relay_alone_learn_from_each_other_through_it(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        hosts = [swarm.network.host(name, can_be_dialled=False) for name in ("one", "two")]
        async with relay_in(swarm, tmp_path / "relay") as (relay, events):
            door: Any = relay  # a member needs the address alone
            async with (
                swarm.member("one", door, host=hosts[0]) as one,
                swarm.member("two", door, host=hosts[1]) as two,
            ):
                await anyio.sleep(60.0)
                assert two.host.is_relayed(one.host.peer_id)
                await share(one, 1)
                await anyio.sleep(1.0)
                (fetched,) = await fetch(two, await seen(two))
                assert fetched.read() == content(1)
                status = await relay.answer(api.AskStatus())
                assert isinstance(status, api.SwarmStatus)
                assert not status.has_learner
                assert (status.reach.reservations, status.connected_peers) == (2, 2)
                peers = [fields for event, fields in events if event == "peers"]
                assert (peers[-1]["connected"], peers[-1]["reservations"]) == (2, 2)

    play(story)


async def say_that_nobody_can_be_dialled(stream: Stream) -> None:
    await stream.receive(1000)
    await stream.send(framed_message(DialBackAnswer(True, "203.0.113.9", ())))


def test_a_relay_of_which_peers_say_that_nobody_can_dial_it_relays_on(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with relay_in(swarm, tmp_path / "relay") as (relay, _):
            door: Any = relay
            home = swarm.network.host("home", can_be_dialled=False)
            async with AsyncExitStack() as stack:
                for name in ("one", "two", "three"):
                    liar = await stack.enter_async_context(swarm.member(name, door))
                    liar.host.handle(DIAL_BACK_PROTOCOL, say_that_nobody_can_be_dialled)
                member = await stack.enter_async_context(swarm.member("home", door, host=home))
                await anyio.sleep(60.0)
                status = await relay.answer(api.AskStatus())
                assert isinstance(status, api.SwarmStatus)
                assert (status.reach.reach, status.reach.relays) == (Reach.NOWHERE, ())
                assert status.reach.serves_as_relay
                assert door.host.peer_id in member.reaching.status().relays

    play(story)


def test_a_relay_says_what_it_is_and_says_goodbye(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with relay_in(swarm, tmp_path / "relay") as (relay, events):
            door: Any = relay
            async with swarm.member("one", door) as one:
                await anyio.sleep(20.0)
                seen_relay = await peer(one, door)
                assert seen_relay is not None and seen_relay.heartbeat is not None
                beat = seen_relay.heartbeat
                assert (beat.name, beat.model, beat.phase, beat.family) == ("relay", "", RELAYING, bytes(16))
                assert beat.connected == connections_field([one.host.peer_id])
                relay.leave("enough")
                await anyio.sleep(2.0)
                assert events[-1] == ("left", {"reason": "enough"})
                gone = await peer(one, door)
                assert gone is not None and not gone.connected and gone.heartbeat_age_seconds is None

    play(story)


def test_a_relay_refuses_what_takes_a_learner_and_keeps_no_blobs(tmp_path: Path) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        async with relay_in(swarm, tmp_path / "relay") as (relay, _):
            with pytest.raises(ConfigurationError, match="neither trains nor keeps blobs"):
                await relay.answer(api.AskSeenGroups(0, 10))
            assert not (tmp_path / "relay" / "blobs").exists()

    play(story)


def test_a_relay_never_calls_its_learner_silent() -> None:
    clock = [0.0]
    beats = {has: OwnHeartbeats("", "", wall_clock=lambda: clock[0], has_learner=has) for has in (True, False)}
    clock[0] = 2 * LEARNER_SILENT_SECONDS
    assert beats[True].said_now().phase == "learner silent"
    assert beats[False].said_now().phase == RELAYING
