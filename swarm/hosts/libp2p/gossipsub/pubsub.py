"""GossipSub with verdicts, on py-libp2p's router.

The id of a message is the hash of its topic and content, so that the same announcement from two publishers is one
message. The checks in order: a message that was seen is dropped; a wrong signature of the publisher, more than one
topic or too many bytes is a REJECT; then the topic's validator decides. ACCEPT delivers and forwards, IGNORE does
neither, REJECT does neither and costs the forwarding peer one point. Below ``MUTE_SCORE`` nothing is accepted from the
peer and nothing sent to it until the points decay. A message counts as seen once its signature is valid, whatever the
verdict.

Departures from the library: its message cache and its ids for IHAVE use publisher and number, whatever the message id
is set to; its validators have no IGNORE; it delivers through a channel that drops bursts; it attaches a signed address
record to every message; its mesh maintenance leaves peers without a mesh. All five are replaced here.
"""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256

import anyio
from libp2p.abc import IHost
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.mcache import CacheEntry, MessageCache
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.score import PeerScorer, ScoreParams, TopicScoreParams
from libp2p.pubsub.validators import signature_validator

from protocol import limits
from swarm.host import GossipVerdict, Receiver, Validator

MUTE_SCORE = -10.0
SCORE_DECAY = 0.99  # per heartbeat of one second: a peer is muted for about a minute
SCORE_CAP = 40.0
QUEUED_MESSAGES = 512  # to one peer; the library's 32 lose bursts, which are repaired only at a heartbeat
HEARTBEAT_SECONDS = 1
HISTORY_HEARTBEATS = 10  # within which a slow node can ask for messages that it missed
PRUNE_SECONDS = 10  # before two peers that left each other's mesh may mesh again
GOSSIPED_HEARTBEATS = 3
CONTROL_PER_SECOND = 50.0  # IHAVE and IWANT taken from one peer
SEEN_SECONDS = 120
SUBSCRIPTIONS_PER_PEER = 16
RPC_BYTES = 1024 * 1024


def message_id(message: rpc_pb2.Message) -> bytes:
    """Returns 144 bits of a hash as text, since IHAVE carries ids as text."""
    content = b"\0".join([*(topic.encode() for topic in message.topicIDs), bytes(message.data)])
    return b64encode(sha256(content).digest()[:18])


class ContentCache(MessageCache):
    """The router's cache of recent messages, keyed by ``message_id``."""

    def put(self, msg: rpc_pb2.Message) -> None:
        key = message_id(msg)
        if key not in self.msgs:
            self.msgs[key] = msg
            self.history[0].append(CacheEntry(key, msg.topicIDs))


class Mesh(GossipSub):
    """The library's mesh, without its extras."""

    def __init__(self, mesh_degree: int) -> None:
        self.peer_scorer = PeerScorer(_score_params())
        super().__init__(
            protocols=[PROTOCOL_ID_V11],
            degree=mesh_degree,
            degree_low=max(1, mesh_degree - 1),
            degree_high=mesh_degree + max(2, mesh_degree // 2),
            heartbeat_interval=HEARTBEAT_SECONDS,
            gossip_window=GOSSIPED_HEARTBEATS,
            gossip_history=HISTORY_HEARTBEATS,
            prune_back_off=PRUNE_SECONDS,
            do_px=False,  # addresses come from the DHT; a stranger that prunes must not choose which peers we dial
            adaptive_gossip_enabled=False,
            spam_protection_enabled=False,  # the validator limits rates; it knows the sender of a message
            eclipse_protection_enabled=False,  # it requires several addresses in a mesh; behind one NAT there is one
        )
        self.scorer = self.peer_scorer
        self.mcache = ContentCache(GOSSIPED_HEARTBEATS, HISTORY_HEARTBEATS)
        self.max_iwant_requests_per_second = CONTROL_PER_SECOND
        self.max_ihave_messages_per_second = CONTROL_PER_SECOND

    async def publish(self, msg_forwarder: ID, pubsub_msg: rpc_pb2.Message) -> None:
        self.mcache.put(pubsub_msg)
        pubsub = self.pubsub
        assert pubsub is not None
        topics = list(pubsub_msg.topicIDs)
        rpc = rpc_pb2.RPC(publish=[pubsub_msg])
        for peer in self._get_peers_to_send(topics, msg_forwarder, ID(pubsub_msg.from_id), message_id(pubsub_msg)):
            if peer in pubsub.peers and self.peer_scorer.allow_publish(peer, topics):
                self.send_rpc(peer, rpc)

    def _perform_opportunistic_grafting(self, topic: str, peers_to_graft: defaultdict[ID, list[str]]) -> int:
        return 0  # the library grafts a peer that it just pruned; both back off repeatedly, and the mesh becomes empty

    async def _maintain_mesh_quality(self, topic: str) -> None:
        return  # for the same reason

    async def _emit_control_msgs(
        self,
        peers_to_graft: dict[ID, list[str]],
        peers_to_prune: dict[ID, list[str]],
        peers_to_gossip: dict[ID, dict[str, list[bytes]]],
    ) -> None:
        """Sends each peer its own control messages; the library also sends those of one peer to the next."""
        for peer in {*peers_to_graft, *peers_to_prune, *peers_to_gossip}:
            pruned = peers_to_prune.get(peer, [])
            for topic in pruned:
                self._add_back_off(peer, topic, is_unsubscribe=False)
            control = self.pack_control_msgs(
                [rpc_pb2.ControlIHave(topicID=t, messageIDs=ids) for t, ids in peers_to_gossip.get(peer, {}).items()],
                [rpc_pb2.ControlGraft(topicID=topic) for topic in peers_to_graft.get(peer, [])],
                [rpc_pb2.ControlPrune(topicID=topic, backoff=PRUNE_SECONDS) for topic in pruned],
            )
            await self.emit_control_message(control, peer)

    async def emit_control_message(self, control_msg: rpc_pb2.ControlMessage, to_peer: ID) -> None:
        self.send_rpc(to_peer, rpc_pb2.RPC(control=control_msg), priority=True)

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Sends them to a new subscriber through its queue; the library bypasses the queue, and frames interleave."""
        for key in self.mcache.window(topic):
            message = self.mcache.get(key)
            if message is not None and self.peer_scorer.allow_publish(peer_id, [topic]):
                self.send_rpc(peer_id, rpc_pb2.RPC(publish=[message]))


def _score_params() -> ScoreParams:
    return ScoreParams(
        p2_first_message_deliveries=TopicScoreParams(weight=0.05, cap=SCORE_CAP, decay=SCORE_DECAY),
        p4_invalid_messages=TopicScoreParams(weight=1.0, cap=SCORE_CAP, decay=SCORE_DECAY),
        p5_behavior_penalty_weight=0.1,
        p5_behavior_penalty_decay=SCORE_DECAY,
        publish_threshold=MUTE_SCORE,
        gossip_threshold=MUTE_SCORE,
        graylist_threshold=2 * MUTE_SCORE,
        accept_px_threshold=0.0,
    )


class VerdictPubsub(Pubsub):
    """Publish and subscribe with our validators. ``on_bug`` is called with what our validators and receivers raise."""

    def __init__(self, host: IHost, mesh: Mesh, on_bug: Callable[[Exception], None]) -> None:
        super().__init__(
            host,
            mesh,
            seen_ttl=SEEN_SECONDS,
            strict_signing=True,
            msg_id_constructor=message_id,
            max_subscriptions_per_rpc=SUBSCRIPTIONS_PER_PEER,
            max_subscriptions_per_peer=SUBSCRIPTIONS_PER_PEER,
            max_inbound_rpc_size=RPC_BYTES,
        )
        self.mesh = mesh
        self._on_bug = on_bug
        self._receivers: dict[str, tuple[Validator, Receiver]] = {}

    async def receive_topic(self, topic: str, validate: Validator, on_message: Receiver) -> None:
        self._receivers[topic] = (validate, on_message)
        await self.subscribe(topic)

    async def flush(self, max_seconds: float) -> None:
        """Waits until nothing is queued to any peer, at most ``max_seconds``."""
        with anyio.move_on_after(max_seconds):
            while any(len(queue) for queue in self.peer_queues.values()):  # noqa: ASYNC110  there is no event for it
                await anyio.sleep(0.01)
            await anyio.sleep(0.02)  # the last message taken from a queue is still being written

    def stop_cache(self) -> None:
        """Ends the library's thread that sweeps its cache of seen messages."""
        self.seen_messages.stop()

    async def _handle_new_peer(self, peer_id: ID) -> None:
        await super()._handle_new_peer(peer_id)
        if peer_id in self.peer_queues:
            self.peer_queues[peer_id]._queue.max_size = QUEUED_MESSAGES

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Handles every message; the library calls it, also for those of this host."""
        if self._is_msg_seen(msg):
            return
        if msg_forwarder == self.my_id:
            self._mark_msg_seen(msg)
            await self.router.publish(msg_forwarder, msg)
            return
        topics = list(msg.topicIDs)
        if not self.mesh.peer_scorer.allow_publish(msg_forwarder, topics):
            return
        if self._judge(msg_forwarder, msg):
            await self.router.publish(msg_forwarder, msg)

    def _judge(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        """Validates, scores and delivers a message; returns whether to forward it."""
        scorer, topics = self.mesh.peer_scorer, list(message.topicIDs)
        if len(topics) != 1 or len(message.data) > limits.ANNOUNCEMENT_BYTES or not _is_signed(message):
            for topic in topics[:1]:
                scorer.on_invalid_message(forwarder, topic)
            return False
        self._mark_msg_seen(message)
        validate, on_message = self._receivers[topics[0]]
        try:
            verdict = validate(str(forwarder), bytes(message.data))
            if verdict is GossipVerdict.ACCEPT:
                on_message(str(forwarder), bytes(message.data))
        except Exception as bug:  # noqa: BLE001  ours, raised again where the library cannot swallow it
            self._on_bug(bug)
            return False
        if verdict is GossipVerdict.REJECT:
            scorer.on_invalid_message(forwarder, topics[0])
        elif verdict is GossipVerdict.ACCEPT:
            scorer.on_first_delivery(forwarder, topics[0])
        return verdict is GossipVerdict.ACCEPT


def _is_signed(message: rpc_pb2.Message) -> bool:
    try:
        return bool(signature_validator(message))
    except Exception:  # noqa: BLE001  a key that makes the library raise has no valid signature
        return False
