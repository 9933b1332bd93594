"""Messages of gossip on py-libp2p that are published while a peer is on its way into the mesh."""

from __future__ import annotations

from typing import Any

import trio

from swarm.host import GossipVerdict, PeerId
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

TOPIC = "test"
MESSAGES = 150


def accept(peer: PeerId, message: bytes) -> GossipVerdict:
    return GossipVerdict.ACCEPT


def test_subscription_that_comes_before_our_own_stream_loses_no_message(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        publisher, listener = await world.start(tasks, 2)
        assert isinstance(publisher, Libp2pHost)
        heard: list[bytes] = []
        may_open = trio.Event()
        new_stream = publisher._host.new_stream

        async def later(*arguments: Any) -> Any:
            await may_open.wait()
            return await new_stream(*arguments)

        publisher._host.new_stream = later  # type: ignore[assignment, method-assign]
        await publisher.subscribe(TOPIC, accept, lambda peer, message: None)
        await listener.subscribe(TOPIC, accept, lambda peer, message: heard.append(message))
        await listener.connect(publisher.addresses()[0], deadline_seconds=10)
        await world.eventually(lambda: bool(publisher._pubsub.peer_topics))
        for number in range(MESSAGES):
            if number == MESSAGES // 3:
                may_open.set()
            await publisher.publish(TOPIC, b"%d" % number)
            await trio.sleep(0.001)
        await world.eventually(lambda: len(heard) == MESSAGES)

    tell_on_sockets(story)


def test_peer_is_heard_and_hears_again_after_our_own_stream_to_it_ended(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        publisher, listener = await world.start(tasks, 2)
        assert isinstance(publisher, Libp2pHost)
        heard: list[bytes] = []
        await publisher.subscribe(TOPIC, accept, lambda peer, message: None)
        await listener.subscribe(TOPIC, accept, lambda peer, message: heard.append(message))
        await listener.connect(publisher.addresses()[0], deadline_seconds=10)
        await world.eventually(lambda: any(publisher._pubsub.mesh.mesh.values()))
        (ours,) = publisher._pubsub.peers.values()  # as after a reconnection that was quicker than its own notice
        await ours.reset()
        await publisher.publish(TOPIC, b"meets the end of the stream")
        await world.eventually(lambda: bool(publisher._pubsub.peers) and ours not in publisher._pubsub.peers.values())
        await publisher.publish(TOPIC, b"after it")
        await world.eventually(lambda: b"after it" in heard)
        await listener.disconnect(publisher.peer_id)
        await world.eventually(lambda: not publisher._pubsub.peer_topics)

    tell_on_sockets(story)
