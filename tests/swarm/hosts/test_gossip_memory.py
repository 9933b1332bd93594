"""Every table of gossip on py-libp2p: who is pushed out when it is full, and what one peer can take of it."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import RpcQueue

from swarm.hosts.libp2p.gossipsub import allowances, mesh, messages, pubsub, scores, send_queue
from swarm.hosts.libp2p.gossipsub.allowances import Allowances
from swarm.hosts.libp2p.gossipsub.mesh import Mesh
from swarm.hosts.libp2p.gossipsub.messages import MessageCache, SeenMessages, message_id
from swarm.hosts.libp2p.gossipsub.pubsub import VerdictPubsub
from swarm.hosts.libp2p.gossipsub.scores import ForwarderScores
from swarm.hosts.libp2p.gossipsub.send_queue import SendQueue

TOPIC = "test"


def peer(number: int) -> ID:
    return ID(b"peer %d" % number)


def message(publisher: int, number: int, size: int = 1000) -> rpc_pb2.Message:
    return rpc_pb2.Message(
        from_id=b"publisher %d" % publisher, data=b"%d" % number + b" " * size, seqno=bytes(8), topicIDs=[TOPIC]
    )


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_seen_messages_are_bounded_and_the_oldest_is_pushed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SEEN_MESSAGES", 100)
    seen = SeenMessages(Clock())
    for number in range(1000):
        seen.add(b"%d" % number)
    assert len(seen) == 100
    assert seen.has(b"999")
    assert not seen.has(b"899")


def test_seen_messages_are_forgotten_after_their_time_however_often_they_are_asked_for() -> None:
    clock = Clock()
    seen = SeenMessages(clock)
    seen.add(b"a")
    clock.seconds += messages.SEEN_SECONDS - 1
    assert seen.has(b"a")
    clock.seconds += 2
    assert not seen.has(b"a")
    seen.add(b"b")
    assert len(seen) == 1


def test_publisher_of_many_bytes_pushes_its_own_messages_out_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "CACHED_BYTES", 50_000)
    cache = MessageCache(Clock())
    honest = [message(0, number) for number in range(5)]
    for each in honest:
        cache.put(each)
    for number in range(500):
        cache.put(message(1, number))
    for number in range(20):
        cache.put(message(2 + number, number))
    assert all(cache.get(message_id(each)) is not None for each in honest)
    assert cache.total_bytes <= 50_000
    assert sum(len(keys) for keys in cache._by_publisher.values()) == len(cache)


def test_cache_gossips_what_is_new_keeps_what_is_recent_and_drops_the_rest() -> None:
    clock = Clock()
    cache = MessageCache(clock)
    first, second = message(0, 1), message(0, 2)
    cache.put(first)
    cache.put(first)
    clock.seconds += messages.GOSSIPED_SECONDS + 1
    cache.put(second)
    assert cache.window(TOPIC) == [message_id(second)]
    assert cache.window(TOPIC, after_seconds=clock.seconds) == []
    assert cache.window("other") == []
    assert list(cache.recent(TOPIC)) == [first, second]
    clock.seconds += messages.CACHED_SECONDS
    cache.shift()
    assert len(cache) == cache.total_bytes == len(cache._by_publisher) == 0


def test_allowances_outlast_a_connection_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances, "PEERS_REMEMBERED", 10)
    known = Allowances()
    assert known.of(peer(0), now_seconds=0.0).asked_ids.take(allowances.ASKED_IDS_AT_ONCE, now_seconds=0.0)
    assert not known.of(peer(0), now_seconds=0.0).asked_ids.take(1.0, now_seconds=0.0)
    for number in range(100):
        known.of(peer(number), now_seconds=0.0)
    assert len(known) == 10


def test_peer_within_its_own_share_never_waits_for_those_that_take_more() -> None:
    known = Allowances()
    waits = [known.charge(peer(n % 60), 0.05, now_seconds=0.0) for n in range(1200)]
    assert waits[-1] > 100.0
    assert known.charge(peer(99), 0.05, now_seconds=0.0) == 0.0
    assert known.charge(peer(0), 0.001, now_seconds=1.0) == 0.0  # its own share comes back, second by second


def test_peer_that_reads_nothing_makes_a_bounded_queue_in_which_control_messages_keep_places() -> None:
    queue = SendQueue()
    large = rpc_pb2.RPC(publish=[message(0, 1, size=60_000)])
    taken = sum(queue.push(large) for _ in range(1000))
    assert taken == send_queue.QUEUED_BYTES // large.ByteSize()
    small, graft = rpc_pb2.RPC(publish=[message(0, 1, size=1)]), rpc_pb2.RPC(control=rpc_pb2.ControlMessage())
    queue = SendQueue()
    assert sum(queue.push(small) for _ in range(1000)) == send_queue.QUEUED_RPCS
    assert sum(queue.push(graft, priority=True) for _ in range(1000)) == send_queue.RESERVED_RPCS
    assert queue.pop() is graft
    while queue.pop() is not None:
        pass
    assert len(queue) == queue.queued_bytes == 0


def test_points_outlast_a_connection_until_they_have_decayed() -> None:
    known = ForwarderScores()
    for _ in range(20):
        known.on_invalid_message(peer(0), TOPIC)
    known.remove_peer(peer(0))
    assert known.is_muted(peer(0), [TOPIC])
    for _ in range(500):
        known.on_heartbeat()
    assert not known.is_muted(peer(0), [TOPIC])


def test_scores_of_peers_that_were_only_asked_about_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "PEERS_REMEMBERED", 10)
    known = ForwarderScores()
    known.on_refused_rpc(peer(0))
    for number in range(1, 200):
        assert not known.is_muted(peer(number), [TOPIC])
        if number % 2:
            known.penalize_behavior(peer(number), 20.0)
    known.on_heartbeat()
    assert len(known.behavior_penalty) == 10
    assert known.is_expelled(peer(0), [TOPIC])
    known.on_heartbeat()
    for table in (known.first_message_deliveries, known.invalid_messages, known.time_in_mesh):
        assert len(table) <= 10


def test_back_off_is_bounded_in_number_and_the_one_that_ends_first_is_pushed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mesh, "BACK_OFFS_PER_TOPIC", 10)
    router = Mesh(4)
    for number in range(100):
        router._add_back_off(peer(number), TOPIC, is_unsubscribe=False, backoff_duration=600 - number)
    assert len(router.back_off[TOPIC]) == 10
    assert peer(0) in router.back_off[TOPIC]


def test_peer_that_joins_the_mesh_late_hears_which_messages_it_missed() -> None:
    router = Mesh(4)
    queue = SendQueue()
    router.attach(SimpleNamespace(peer_queues={peer(1): queue}, peers={peer(1)}, peer_topics={}))  # type: ignore[arg-type]
    missed = message(0, 1)
    router.mcache.put(missed)
    router._notify_mesh_peer_added(peer(1), TOPIC)
    told = queue.pop()
    assert told is not None
    assert [list(ihave.messageIDs) for ihave in told.control.ihave] == [[message_id(missed)]]


def test_peer_that_pruned_us_is_told_of_messages_and_is_not_grafted() -> None:
    router = Mesh(4)
    listeners = {peer(number) for number in range(1, 4)}
    queues = {listener: SendQueue() for listener in listeners}
    router.attach(SimpleNamespace(peer_queues=queues, peers=listeners, peer_topics={TOPIC: listeners}))  # type: ignore[arg-type]
    for listener in listeners:
        router.peer_protocol[listener] = PROTOCOL_ID_V11
    router.mesh[TOPIC] = {peer(1), peer(3)}
    prune = rpc_pb2.ControlPrune(topicID=TOPIC, backoff=60)
    trio.run(router.handle_rpc, rpc_pb2.RPC(control=rpc_pb2.ControlMessage(prune=[prune])), peer(1))
    assert router.mesh[TOPIC] == {peer(3)}
    published = message(0, 1)
    router.mcache.put(published)
    grafts, _ = router.mesh_heartbeat()
    assert peer(1) not in grafts
    router.mesh[TOPIC] = {peer(3)}
    assert router.gossip_heartbeat() == {
        peer(1): {TOPIC: [message_id(published)]},  # in back-off
        peer(2): {TOPIC: [message_id(published)]},
    }


def test_few_of_many_peers_outside_the_mesh_are_told_and_none_that_is_muted() -> None:
    router = Mesh(4)
    listeners = {peer(number) for number in range(40)}
    router.attach(SimpleNamespace(peer_queues={}, peers=listeners, peer_topics={TOPIC: listeners}))  # type: ignore[arg-type]
    for listener in listeners:
        router.peer_protocol[listener] = PROTOCOL_ID_V11
    router.mesh[TOPIC] = set()
    router.mcache.put(message(0, 1))
    for number in range(20):
        router.peer_scorer.on_refused_rpc(peer(number))
    told = router.gossip_heartbeat()
    assert len(told) == mesh.OFFERED_TO
    assert not told.keys() & {peer(number) for number in range(20)}


@pytest.mark.parametrize(("joined", "left"), [(2, 4), (3, 3), (5, 5), (6, 4), (40, 4)])
def test_mesh_too_small_or_a_quarter_too_large_is_brought_to_its_degree_since_every_member_sends_a_copy(
    joined: int, left: int
) -> None:
    router, peers = Mesh(4), [peer(number) for number in range(40)]
    router.attach(SimpleNamespace(peer_queues={}, peers=set(peers), peer_topics={TOPIC: set(peers)}))  # type: ignore[arg-type]
    router.peer_protocol.update(dict.fromkeys(peers, PROTOCOL_ID_V11))
    router.mesh[TOPIC] = set(peers[:joined])
    router.mesh_heartbeat()
    assert len(router.mesh[TOPIC]) == left


@pytest.mark.parametrize("connections", [16, 160])
def test_offers_of_recent_messages_do_not_grow_with_the_connections(connections: int) -> None:
    router, peers = Mesh(4), [peer(number) for number in range(connections)]
    router.attach(SimpleNamespace(peer_topics={TOPIC: set(peers)}))  # type: ignore[arg-type]
    router.peer_protocol.update(dict.fromkeys(peers, PROTOCOL_ID_V11))
    router.mesh[TOPIC] = set(peers[:4])
    router.mcache.put(message(0, 1))
    offered = router.gossip_heartbeat()
    assert len(offered.keys() - router.mesh[TOPIC]) == len(offered) == mesh.OFFERED_TO


def test_message_that_a_peer_has_leaves_the_queue_in_which_it_waits_and_ids_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(send_queue, "UNWANTED_IDS", 10)
    router, waiting = Mesh(4), [message(0, number) for number in range(4)]
    queue = SendQueue()
    router.attach(SimpleNamespace(peer_queues={peer(1): SimpleNamespace(_queue=queue)}, peers=set(), peer_topics={}))  # type: ignore[arg-type]
    for each in waiting:
        queue.push(rpc_pb2.RPC(publish=[each]))

    def say(*unwanted: bytes) -> None:
        control = rpc_pb2.ControlMessage(idontwant=[rpc_pb2.ControlIDontWant(messageIDs=unwanted)])
        trio.run(router.handle_rpc, rpc_pb2.RPC(control=control), peer(1))

    say(message_id(waiting[0]), message_id(waiting[2]), b"no id of ours")
    left = [queue.pop(), queue.pop()]
    assert [list(rpc.publish) for rpc in left if rpc is not None] == [[waiting[1]], [waiting[3]]]
    assert queue.pop() is None and queue.queued_bytes == 0
    say(*(b"%024d" % number for number in range(2000)))
    assert len(queue._unwanted) == 10
    assert router.peer_scorer.points_against(peer(1)) == 0  # an honest peer sends many; what exceeds them is not noted
    assert b"%024d" % 1999 not in queue._unwanted


def test_large_message_is_declined_to_neighbours_of_1_2_and_to_no_others() -> None:
    router, queues = Mesh(4), {peer(number): SendQueue() for number in range(1, 5)}
    router.attach(SimpleNamespace(peer_queues=queues, peers=set(queues), peer_topics={}))  # type: ignore[arg-type]
    router.mesh[TOPIC] = {peer(1), peer(2), peer(3)}
    for number in range(1, 5):
        router.peer_protocol[peer(number)] = PROTOCOL_ID_V11 if number == 2 else PROTOCOL_ID_V12
    router.decline(TOPIC, b"small", mesh.LARGE_BYTES - 1, peer(1))
    router.decline(TOPIC, b"id", mesh.LARGE_BYTES, peer(1))
    assert {receiver: len(queue) for receiver, queue in queues.items() if len(queue)} == {peer(3): 1}


def test_nothing_that_was_written_to_a_peer_is_kept_until_the_next_message() -> None:
    class Sink:
        written_bytes = 0

        async def write(self, raw: bytes) -> None:
            self.written_bytes += len(raw)

    async def story() -> None:
        queue, sink = RpcQueue(), Sink()
        queue._queue = SendQueue()  # type: ignore[assignment]
        writing: Any = VerdictPubsub.handle_sending_messages
        async with trio.open_nursery() as tasks:
            tasks.start_soon(writing, SimpleNamespace(), peer(1), sink, queue)
            queue.push(rpc_pb2.RPC(publish=[message(1, 1, 30_000)]))
            tracemalloc.start()
            try:
                await trio.testing.wait_all_tasks_blocked()
                traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, pubsub.__file__)]).traces
            finally:
                tracemalloc.stop()
            assert sink.written_bytes > 30_000
            assert sum(trace.size for trace in traces) < 10_000
            tasks.cancel_scope.cancel()

    trio.run(story)
