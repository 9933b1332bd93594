"""GossipSub with verdicts, on py-libp2p's router.

The id of a message is the hash of its topic and content, so that the same announcement from two publishers is one
message. The checks in order: a message that was seen is dropped; a wrong signature of the publisher, more than one
topic or too many bytes is a REJECT; then the topic's validator decides. ACCEPT delivers and forwards, IGNORE does
neither, REJECT does neither and costs the forwarding peer one point (``scores``). A message counts as seen once its
signature is valid, whatever the verdict.

An RPC passes these before any of its messages: that of a muted peer is dropped unparsed; ``rpc_bounds`` walks its
bytes, and a peer whose RPC breaks a bound is disconnected and counted in ``refusals``. What the RPCs of a peer cost is
charged to it after each message, and the peer waits where that is more than its share (``allowances``). At most
``STREAMS_PER_PEER`` streams of one peer are read, the newest, and ``LARGE_RPCS`` RPCs of more than ``SMALL_RPC_BYTES``
are in memory.

Departures from the library, besides those of ``mesh``: it starts a task for every message, which costs the square of
their number; its message cache and its ids for IHAVE use publisher and number, whatever the message id is set to; its
validators have no IGNORE; it delivers through a channel that drops bursts; it verifies and keeps an address record with
every RPC; a peer whose subscription comes before our stream to it stands is in no mesh until the next heartbeat; it
gives up for good on a connected peer that is too busy to negotiate our stream within its ten seconds; it
forgets what a peer listens to when our own stream to it ends, as the old one does after a quick reconnection, although
the peer has said it on a stream that stands and does not say it again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container
from contextlib import nullcontext

import anyio
from google.protobuf.message import DecodeError
from libp2p.abc import IHost, INetStream
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.utils import encode_varint_prefixed

from protocol import limits
from swarm.host import GossipVerdict, Receiver, Validator
from swarm.hosts.libp2p.containment import PEER_FAILURES
from swarm.hosts.libp2p.gossipsub.allowances import SECONDS_PER_BYTE, SECONDS_PER_RPC
from swarm.hosts.libp2p.gossipsub.mesh import Mesh
from swarm.hosts.libp2p.gossipsub.messages import SeenMessages, is_signed, message_id
from swarm.hosts.libp2p.gossipsub.rpc_bounds import RpcRefusal, rpc_refusal
from swarm.hosts.libp2p.gossipsub.rpc_reader import RpcReader
from swarm.hosts.libp2p.gossipsub.scores import INVALID_POINTS, MUTED_RPC_POINTS
from swarm.hosts.libp2p.gossipsub.send_queue import SendQueue

STREAMS_PER_PEER = 2  # one is in use; a second is on its way where two hosts dial each other
SMALL_RPC_BYTES = 128 * 1024  # more than any RPC of one message
LARGE_RPCS = 8
WRITTEN_BYTES = 32 * 1024  # at once: a write takes seven turns of the loop, as long as a busy machine makes them
CHECKPOINT_SECONDS = 0.001  # of gossip at a stretch, before other tasks have their turn


class RefusedRpcError(Exception):
    """Ends the reading of a peer that sent what no honest peer sends."""

    def __init__(self, refusal: RpcRefusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class VerdictPubsub(Pubsub):
    """Publish and subscribe with our validators.

    ``on_bug`` is called with what our validators and receivers raise; refused RPCs are counted in ``refusals``.
    Nothing of ``blocked`` peers is read.
    """

    def __init__(
        self,
        host: IHost,
        mesh: Mesh,
        on_bug: Callable[[Exception], None],
        refusals: Counter[str],
        blocked: Container[ID] = (),
    ) -> None:
        super().__init__(host, mesh, strict_signing=True, msg_id_constructor=message_id)
        self.seen_messages.stop()  # the library's cache has a thread and no bound
        self.seen_messages = SeenMessages(time.monotonic)  # type: ignore[assignment]
        self.mesh = mesh
        self._on_bug = on_bug
        self._refusals = refusals
        self._blocked = blocked
        self._receivers: dict[str, tuple[Validator, Receiver]] = {}
        self._incoming: defaultdict[ID, list[anyio.CancelScope]] = defaultdict(list)
        self._registering: set[ID] = set()
        self._stretch_seconds = 0.0
        self._large_rpcs = anyio.Semaphore(LARGE_RPCS)

    async def receive_topic(self, topic: str, validate: Validator, on_message: Receiver) -> None:
        self._receivers[topic] = (validate, on_message)
        await self.subscribe(topic)

    async def flush(self, max_seconds: float) -> None:
        """Waits until nothing is queued to any peer, at most ``max_seconds``."""
        with anyio.move_on_after(max_seconds):
            while any(len(queue) for queue in self.peer_queues.values()):  # noqa: ASYNC110  there is no event for it
                await anyio.sleep(0.01)
            await anyio.sleep(0.02)  # the last message taken from a queue is still being written

    # Peers

    def is_peer_blacklisted(self, peer_id: ID) -> bool:
        return peer_id in self._blocked

    async def _handle_new_peer(self, peer_id: ID) -> None:
        if peer_id in self._registering:  # over another connection; the library would open a second stream
            return
        ours = self.peers.get(peer_id)
        if ours is not None and ours.muxed_conn.is_closed:  # of the connection before, which ended a moment ago
            self._handle_dead_peer(peer_id)
        self._registering.add(peer_id)
        try:
            await super()._handle_new_peer(peer_id)
        except PEER_FAILURES as error:
            raise SwarmException(f"no gossip stream to {peer_id} yet") from error  # which the library tries again
        finally:
            self._registering.discard(peer_id)

    async def _send_recent_messages_to_new_peer(self, peer_id: ID) -> None:
        """Ends the registration of a peer, with no checkpoint since its queue was made."""
        self.peer_queues[peer_id]._queue = SendQueue()  # type: ignore[assignment]
        for topic in [topic for topic, peers in self.peer_topics.items() if peer_id in peers]:
            await self._on_listener(peer_id, topic)

    async def _on_listener(self, peer: ID, topic: str) -> None:
        """Sends a peer that listens the recent messages and takes it into the mesh, with no checkpoint between."""
        await self._replay_recent_messages(peer, topic)
        await self.mesh.on_peer_subscribed(peer, topic)

    async def _subscription(self, peer: ID, topic: str, subscribes: bool) -> None:
        """Notes that a peer begins or ends to listen; topics of ours have a place in any case."""
        count, is_known = self._peer_subscription_count.get(peer, 0), peer in self.peer_topics.get(topic, ())
        has_place = topic in self._receivers or count < limits.GOSSIP_TOPICS_PER_PEER
        if subscribes == is_known or len(topic) > limits.GOSSIP_TOPIC_CHARACTERS or not (is_known or has_place):
            return
        now = time.monotonic()
        if not self.mesh.allowances.of(peer, now_seconds=now).subscriptions.take(1.0, now_seconds=now):
            self.mesh.peer_scorer.penalize_behavior(peer)
        elif subscribes:
            self.peer_topics.setdefault(topic, set()).add(peer)
            self._peer_subscription_count[peer] = count + 1
            await self._on_listener(peer, topic)
        else:
            self._forget_subscription(peer, topic)

    def _forget_all_subscriptions(self, peer_id: ID) -> None:
        """Forgets them once no stream stands on which the peer said them; called when a stream of either side ended."""
        if self._incoming.get(peer_id):
            self._replayed_recent_topics.pop(peer_id, None)  # our next stream begins with the recent messages
        else:
            super()._forget_all_subscriptions(peer_id)

    # Writing

    async def handle_sending_messages(self, peer_id: ID, stream: INetStream, queue: RpcQueue) -> None:
        """Writes what waits for a peer, several RPCs at once, until its queue is closed or the stream fails."""
        try:
            while (rpc := await queue.pop()) is not None:
                written = bytearray()
                while rpc is not None:
                    written += encode_varint_prefixed(rpc.SerializeToString())
                    rpc = queue._queue.pop() if len(written) < WRITTEN_BYTES else None
                await stream.write(bytes(written))
                del written  # else it would stay in memory, of each peer, until the next one
        except PEER_FAILURES:
            self._handle_dead_peer(peer_id)

    # Reading

    async def stream_handler(self, stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        if self.is_peer_blacklisted(peer) or self._is_expelled(peer):
            await stream.reset()
            self._expel(peer)
            return
        mine = self._incoming[peer]
        try:
            with anyio.CancelScope() as scope:
                mine.append(scope)
                if len(mine) > STREAMS_PER_PEER:
                    mine.pop(0).cancel()
                reader = RpcReader(stream)
                while self.manager.is_running:
                    await self._read_rpc(reader, peer)
        except RefusedRpcError as error:
            self._refusals[error.refusal] += 1
            self.mesh.peer_scorer.on_refused_rpc(peer)
            self._expel(peer)
        except PEER_FAILURES:
            pass  # the peer ended its stream, or is gone
        finally:
            if scope in mine:
                mine.remove(scope)
            if not mine:
                self._incoming.pop(peer, None)
                self._forget_all_subscriptions(peer)
            with anyio.CancelScope(shield=True):
                await stream.reset()

    def _is_expelled(self, peer: ID) -> bool:
        return self.mesh.peer_scorer.is_expelled(peer, list(self._receivers))

    def _expel(self, peer: ID) -> None:
        self.manager.run_task(self.host.disconnect, peer)

    async def _read_rpc(self, reader: RpcReader, peer: ID) -> None:
        length = await reader.length()
        if length > limits.GOSSIP_RPC_BYTES:
            raise RefusedRpcError(RpcRefusal.OVERSIZED)
        async with self._large_rpcs if length > SMALL_RPC_BYTES else nullcontext():
            raw = await reader.rpc(length)
            await self._charge(peer, SECONDS_PER_RPC + length * SECONDS_PER_BYTE)
            await self._take_rpc(peer, raw)

    async def _take_rpc(self, peer: ID, raw: bytes) -> None:
        scorer = self.mesh.peer_scorer
        if scorer.is_muted(peer, list(self._receivers)):
            scorer.penalize_behavior(peer, MUTED_RPC_POINTS)
            if self._is_expelled(peer):
                raise RefusedRpcError(RpcRefusal.MUTED)
            return
        began = time.thread_time()
        if refusal := rpc_refusal(raw):
            raise RefusedRpcError(refusal)
        try:
            rpc = rpc_pb2.RPC.FromString(raw)
            if not (rpc.publish or rpc.subscriptions or rpc.HasField("control") or rpc.HasField("senderRecord")):
                scorer.penalize_behavior(peer)  # it says nothing; one of a later version may, but not without end
            for subscription in rpc.subscriptions:
                await self._subscription(peer, subscription.topicid, subscription.subscribe)
            if rpc.HasField("control"):
                await self.mesh.handle_rpc(rpc, peer)
            for message in rpc.publish:
                await self._charge(peer, time.thread_time() - began)
                began = time.thread_time()
                if scorer.is_muted(peer, list(self._receivers)):
                    return
                await self.push_msg(peer, message)
        except DecodeError as error:
            raise RefusedRpcError(RpcRefusal.MALFORMED) from error
        await self._charge(peer, time.thread_time() - began)

    async def _charge(self, peer: ID, cpu_seconds: float) -> None:
        """Waits for as long as the peer has to, and for other tasks where gossip has gone on for long."""
        wait_seconds = self.mesh.allowances.charge(peer, cpu_seconds, now_seconds=time.monotonic())
        self._stretch_seconds += cpu_seconds
        if wait_seconds or self._stretch_seconds > CHECKPOINT_SECONDS:
            self._stretch_seconds = 0.0
            await anyio.sleep(wait_seconds)

    # Messages

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Handles every message, with no checkpoint; the library calls it for those of this host."""
        topics = list(msg.topicIDs)
        is_ours = msg_forwarder == self.my_id
        if not is_ours and not any(topic in self._receivers for topic in topics):
            self.mesh.peer_scorer.penalize_behavior(msg_forwarder)  # it knows that we do not listen there
            return
        if len(topics) != 1:
            self.mesh.peer_scorer.penalize_behavior(msg_forwarder, INVALID_POINTS)
            return
        key = message_id(msg)
        if self.seen_messages.has(key):
            return
        if is_ours:
            msg.ClearField("key")  # it is in the peer id, as every Ed25519 key; the signature does not cover it
            self.seen_messages.add(key)
        elif not self._judge(msg_forwarder, topics[0], msg, key):
            return
        await self.router.publish(msg_forwarder, msg)

    def _judge(self, forwarder: ID, topic: str, message: rpc_pb2.Message, key: bytes) -> bool:
        """Validates, scores and delivers a message; returns whether to forward it."""
        scorer = self.mesh.peer_scorer
        if len(message.data) > limits.ANNOUNCEMENT_BYTES or not is_signed(message):
            scorer.on_invalid_message(forwarder, topic)
            return False
        self.seen_messages.add(key)
        self.mesh.decline(topic, key, len(message.data), forwarder)
        validate, on_message = self._receivers[topic]
        try:
            verdict = validate(str(forwarder), bytes(message.data))
            if verdict is GossipVerdict.ACCEPT:
                on_message(str(forwarder), bytes(message.data))
        except Exception as bug:  # noqa: BLE001  ours, raised again where the library cannot swallow it
            self._on_bug(bug)
            return False
        if verdict is GossipVerdict.REJECT:
            scorer.on_invalid_message(forwarder, topic)
        elif verdict is GossipVerdict.ACCEPT:
            scorer.on_first_delivery(forwarder, topic)
        return verdict is GossipVerdict.ACCEPT
