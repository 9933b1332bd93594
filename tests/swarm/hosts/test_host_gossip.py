"""The guarantees of every host: gossip. The worlds are in ``conftest``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio

from protocol import limits
from swarm.host import GossipVerdict, Host, PeerId
from swarm.hosts.libp2p.gossipsub import mesh as libp2p_mesh

TOPIC = "test"
HEARTBEATS_SECONDS = 0.3  # several heartbeats: a mesh that repeats a message does so at a heartbeat


@pytest.fixture(autouse=True)
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libp2p_mesh, "HEARTBEAT_SECONDS", HEARTBEATS_SECONDS / 3)


class Ear:
    """Subscribes a host and keeps what it hears."""

    def __init__(self, host: Host, verdict: GossipVerdict = GossipVerdict.ACCEPT) -> None:
        self.host = host
        self.judged: list[tuple[PeerId, bytes]] = []
        self.heard: list[tuple[PeerId, bytes]] = []
        self._verdict = verdict

    def validate(self, peer: PeerId, message: bytes) -> GossipVerdict:
        self.judged.append((peer, message))
        return self._verdict

    async def open(self) -> None:
        await self.host.subscribe(TOPIC, self.validate, lambda peer, message: self.heard.append((peer, message)))


async def listening(world: Any, tasks: trio.Nursery, verdicts: list[GossipVerdict]) -> list[Ear]:
    """A chain of subscribed hosts."""
    hosts = await world.start(tasks, len(verdicts))
    ears = [Ear(host, verdict) for host, verdict in zip(hosts, verdicts, strict=True)]
    for ear in ears:
        await ear.open()
    for one, other in pairwise(hosts):
        await one.connect(other.addresses()[0], deadline_seconds=10)
    return ears


def test_accepted_message_reaches_everyone_once_and_never_its_publisher(tell) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        first, middle, last = await listening(world, tasks, [GossipVerdict.ACCEPT] * 3)
        await first.host.publish(TOPIC, b"news")
        await world.eventually(lambda: bool(middle.heard and last.heard))
        await trio.sleep(HEARTBEATS_SECONDS)  # in which nothing may come twice
        assert middle.heard == [(first.host.peer_id, b"news")]
        ((forwarder, heard),) = last.heard
        assert heard == b"news"
        assert forwarder == middle.host.peer_id if world.judges_first else forwarder in ("", first.host.peer_id)
        assert not first.heard
        assert not first.judged

    tell(story)


@pytest.mark.parametrize("verdict", [GossipVerdict.IGNORE, GossipVerdict.REJECT])
def test_message_that_is_not_accepted_is_neither_delivered_nor_forwarded(tell, verdict: GossipVerdict) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        first, middle, last = await listening(world, tasks, [GossipVerdict.ACCEPT, verdict, GossipVerdict.ACCEPT])
        await first.host.publish(TOPIC, b"rumour")
        await world.eventually(lambda: bool(middle.judged))
        rejected = world.rejections(middle.host, first.host.peer_id)
        assert (rejected > 0.5) == (verdict is GossipVerdict.REJECT)
        assert not middle.heard
        await trio.sleep(HEARTBEATS_SECONDS)
        assert middle.judged == [(first.host.peer_id, b"rumour")]
        assert not middle.heard
        if world.judges_first:
            assert not last.judged
        else:  # the daemon forwards before it asks
            await world.eventually(lambda: bool(last.judged))

    tell(story)


def test_equal_content_from_two_publishers_is_one_message(tell) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        first, middle, last = await listening(world, tasks, [GossipVerdict.ACCEPT] * 3)
        await first.host.publish(TOPIC, b"twice")
        await world.eventually(lambda: bool(last.heard))
        await last.host.publish(TOPIC, b"twice")
        await trio.sleep(HEARTBEATS_SECONDS)
        assert [message for _, message in middle.heard] == [b"twice"]
        assert not first.heard

    tell(story)


def test_burst_of_messages_arrives_whole(tell) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        first, _, last = await listening(world, tasks, [GossipVerdict.ACCEPT] * 3)
        await first.host.publish(TOPIC, b"open")  # until it arrives, hosts may not know who listens to what
        await world.eventually(lambda: bool(last.heard))
        for number in range(200):
            await first.host.publish(TOPIC, b"%d" % number)
        await world.eventually(lambda: len(last.heard) == 201)
        assert {message for _, message in last.heard} == {b"open", *(b"%d" % number for number in range(200))}

    tell(story)


def test_messages_published_from_the_moment_of_a_connection_arrive_whole(tell) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        publisher, other = (Ear(host) for host in await world.start(tasks, 2))
        await publisher.open()
        await other.open()
        await publisher.host.connect(other.host.addresses()[0], deadline_seconds=10)
        for number in range(60):  # before it is known who listens, while it becomes known, and after
            await publisher.host.publish(TOPIC, b"%d" % number)
            await trio.sleep(0.001)
        await world.eventually(lambda: len(other.heard) == 60)

    tell(story)


def test_message_over_the_limit_is_refused_before_it_is_sent(tell) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        first, other = await listening(world, tasks, [GossipVerdict.ACCEPT] * 2)
        with pytest.raises(ValueError, match=str(limits.ANNOUNCEMENT_BYTES)):
            await first.host.publish(TOPIC, bytes(limits.ANNOUNCEMENT_BYTES + 1))
        await first.host.publish(TOPIC, bytes(limits.ANNOUNCEMENT_BYTES))
        await world.eventually(lambda: bool(other.heard))

    tell(story)


def test_bug_in_a_validator_comes_out_of_run(tell) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.start(tasks, 2)
        await Ear(one).open()

        def divide(peer: PeerId, message: bytes) -> GossipVerdict:
            raise ZeroDivisionError("our own fault")

        await other.subscribe(TOPIC, divide, lambda peer, message: None)
        await one.connect(other.addresses()[0], deadline_seconds=10)
        await one.publish(TOPIC, b"news")
        await world.ended(other)
        assert [str(bug) for bug in world.bugs] == ["our own fault"]

    tell(story)
