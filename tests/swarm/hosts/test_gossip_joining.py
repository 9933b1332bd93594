"""Messages of gossip on py-libp2p that are published while a peer is on its way into the mesh."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from libp2p.host.exceptions import StreamFailure
from libp2p.pubsub import pubsub as library
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX

from swarm.host import GossipVerdict, PeerId
from swarm.hosts.libp2p.gossipsub.messages import is_signed
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


def test_a_peer_too_busy_to_negotiate_our_stream_in_time_is_sent_gossip_all_the_same(
    tell_on_sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_PEER_STREAM_BACKOFF_INITIAL", 0.02)

    async def story(world: Any, tasks: trio.Nursery) -> None:
        publisher, listener = await world.start(tasks, 2)
        assert isinstance(publisher, Libp2pHost)
        heard: list[bytes] = []
        failures, new_stream = 3, publisher._host.new_stream

        async def too_late_at_first(*arguments: Any) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise StreamFailure("response timed out after 10s")
            return await new_stream(*arguments)

        publisher._host.new_stream = too_late_at_first  # type: ignore[assignment, method-assign]
        await publisher.subscribe(TOPIC, accept, lambda peer, message: None)
        await listener.subscribe(TOPIC, accept, lambda peer, message: heard.append(message))
        await listener.connect(publisher.addresses()[0], deadline_seconds=10)
        await world.eventually(lambda: bool(publisher._pubsub.peers))
        assert not failures
        await publisher.publish(TOPIC, b"news")
        await world.eventually(lambda: heard == [b"news"])

    tell_on_sockets(story)


def test_messages_that_wait_for_a_peer_leave_in_few_writes(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        publisher, listener = await world.start(tasks, 2)
        assert isinstance(publisher, Libp2pHost)
        heard: list[bytes] = []
        await publisher.subscribe(TOPIC, accept, lambda peer, message: None)
        await listener.subscribe(TOPIC, accept, lambda peer, message: heard.append(message))
        await listener.connect(publisher.addresses()[0], deadline_seconds=10)
        await world.eventually(lambda: any(publisher._pubsub.mesh.mesh.values()))
        (stream,) = publisher._pubsub.peers.values()
        writes, write = [], stream.write

        async def counted(data: bytes) -> None:
            writes.append(len(data))
            await write(data)

        stream.write = counted  # type: ignore[method-assign]
        messages = [b"%04d" % number + bytes(996) for number in range(100)]
        for message in messages:
            publisher._pubsub.mesh.send_rpc(
                next(iter(publisher._pubsub.peers)), rpc_pb2.RPC(publish=[signed(publisher, message)])
            )
        await world.eventually(lambda: len(heard) == len(messages))
        assert heard == messages and len(writes) < 10

    tell_on_sockets(story)


def test_a_published_message_says_its_key_once_in_the_peer_id(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        publisher, listener = await world.start(tasks, 2)
        assert isinstance(publisher, Libp2pHost)
        for host in (publisher, listener):
            await host.subscribe(TOPIC, accept, lambda peer, message: None)
        await publisher.connect(listener.addresses()[0], deadline_seconds=10)
        await publisher.publish(TOPIC, b"news")
        (message,) = publisher._pubsub.mesh.mcache.recent(TOPIC)
        assert not message.key and is_signed(message)

    tell_on_sockets(story)


def signed(host: Libp2pHost, content: bytes) -> Any:
    message = rpc_pb2.Message(
        data=content, topicIDs=[TOPIC], from_id=host._network.get_peer_id().to_bytes(), seqno=content[:4]
    )
    assert host._pubsub.sign_key is not None
    signature = host._pubsub.sign_key.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    message.signature = signature
    return message


def test_what_is_published_is_sent_to_every_known_peer_and_known_peers_come_first_in_the_mesh(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        publisher, *others = await world.start(tasks, 11)
        assert isinstance(publisher, Libp2pHost)
        friends, crowd = others[:3], others[3:]
        heard: list[str] = []
        publisher.prefer(lambda: [friend.peer_id for friend in friends])
        await publisher.subscribe(TOPIC, accept, lambda peer, message: None)
        for stranger in crowd:  # forwards nothing
            await stranger.subscribe(TOPIC, lambda *_: GossipVerdict.IGNORE, lambda *_: None)
            await stranger.connect(publisher.addresses()[0], deadline_seconds=10)
        mesh = publisher._pubsub.mesh.mesh
        await world.eventually(lambda: len(mesh[TOPIC]) >= 4)
        for friend in friends:
            await friend.subscribe(TOPIC, accept, lambda peer, message, own=friend.peer_id: heard.append(own))
            await friend.connect(publisher.addresses()[0], deadline_seconds=10)
        # Who has subscribed is known before our own stream to it is open, and is sent recent messages then.
        known = publisher._pubsub
        await world.eventually(lambda: len(known.peer_topics[TOPIC]) == len(known.peers) == len(others))
        publisher._pubsub.mesh.mcache.put = lambda message: None  # type: ignore[method-assign]  # nothing is offered: what comes was sent at once
        await publisher.publish(TOPIC, b"news")
        await world.eventually(lambda: sorted(heard) == sorted(friend.peer_id for friend in friends))
        await world.eventually(lambda: {str(peer) for peer in mesh[TOPIC]} >= {friend.peer_id for friend in friends})

    tell_on_sockets(story)
