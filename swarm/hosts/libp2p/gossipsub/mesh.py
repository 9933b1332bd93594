"""The library's mesh: which peer forwards to which, without its extras, and with bounds on what control messages cause.

Departures from the library:

- Control messages count for topics of ours alone: the library keeps a table entry for each topic that a peer names.
- IWANT is answered once an id and RPC, within ``allowances``; IHAVE is asked for within them. The library answers every
  id, also eight thousand times the same.
- Peers offered with a PRUNE are never dialled. The library dials them, also where peer exchange is switched off.
- IDONTWANT of GossipSub 1.2 takes a message out of the queue in which it waits; the library looks before it queues.
  It is sent for messages of ``LARGE_BYTES`` or more, as go-libp2p does, and its ids are bounded.
- Extensions and observations, which are of later versions than ours, are ignored.
- Peers in prune back-off are gossiped to: back-off forbids GRAFT alone. The library tells them nothing, so that a peer
  that has pruned this host, for 60 s where js-libp2p does it, hears nothing from it until then.
- Recent messages are offered to ``OFFERED_TO`` peers outside of the mesh, however many are connected. The library
  offers them to a quarter of all: with 160 connections more bytes than the messages themselves.
- A peer that joins the mesh is told which messages are recent: between its subscription and its joining, a message is
  sent to nobody there, and peers in the mesh get no IHAVE otherwise.
- What is published here is sent to every peer that ``known`` returns, and these have the first places in the mesh, as
  long as fewer than ``degree_low`` of them are in it: a crowd that connects and forwards nothing cuts nobody off.
- Its mesh maintenance leaves peers without a mesh, and its control messages reach the wrong peers: both are replaced.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import cast

from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, PROTOCOL_ID_V12, GossipSub
from libp2p.pubsub.pb import rpc_pb2

from protocol.gossip_message import MESSAGE_ID_BYTES
from swarm.hosts.libp2p.gossipsub.allowances import Allowances
from swarm.hosts.libp2p.gossipsub.messages import MessageCache
from swarm.hosts.libp2p.gossipsub.scores import ForwarderScores
from swarm.hosts.libp2p.gossipsub.send_queue import SendQueue
from swarm.hosts.mesh_band import fewest, most

HEARTBEAT_SECONDS = 1
PRUNE_SECONDS = 10  # before two peers that left each other's mesh may mesh again
MAX_PRUNE_SECONDS = 600  # that a peer may ask for
BACK_OFFS_PER_TOPIC = 1024
OFFERED_TO = 6  # each heartbeat
LARGE_BYTES = 1024  # of a message that is worth an IDONTWANT to each neighbour, of about sixty bytes on the wire


class Mesh(GossipSub):
    """The peers of each topic to which this host forwards, and the messages that they may have missed."""

    def __init__(self, mesh_degree: int) -> None:
        self.peer_scorer = ForwarderScores()
        self.allowances = Allowances()
        super().__init__(
            protocols=[PROTOCOL_ID_V12, PROTOCOL_ID_V11],
            degree=mesh_degree,
            degree_low=fewest(mesh_degree),
            degree_high=most(mesh_degree),
            heartbeat_interval=HEARTBEAT_SECONDS,
            prune_back_off=PRUNE_SECONDS,
            do_px=False,  # addresses come from the DHT; a stranger that prunes must not choose which peers we dial
            adaptive_gossip_enabled=False,
            spam_protection_enabled=False,  # the validator limits rates; it knows the sender of a message
            eclipse_protection_enabled=False,  # it requires several addresses in a mesh; behind one NAT there is one
        )
        self.scorer = self.peer_scorer
        self.known: Callable[[], Collection[str]] = tuple  # peers that come before others; by default nobody
        self._sent_all_until: dict[ID, float] = {}  # to a new listener, all recent messages
        self.mcache: MessageCache = MessageCache(time.monotonic)  # type: ignore[assignment]

    def remove_peer(self, peer_id: ID) -> None:
        super().remove_peer(peer_id)
        self._sent_all_until.pop(peer_id, None)

    # Messages

    async def publish(self, msg_forwarder: ID, pubsub_msg: rpc_pb2.Message) -> None:
        self.mcache.put(pubsub_msg)
        pubsub = self.pubsub
        assert pubsub is not None
        topics = list(pubsub_msg.topicIDs)
        rpc = rpc_pb2.RPC(publish=[pubsub_msg])
        send_to = set(self._get_peers_to_send(topics, msg_forwarder, ID(pubsub_msg.from_id)))
        if msg_forwarder == pubsub.my_id:
            send_to |= {peer for topic in topics for peer in self._known_listeners(topic)}
        for peer in send_to:
            if peer in pubsub.peers and self.peer_scorer.allow_publish(peer, topics):
                self.send_rpc(peer, rpc)

    def _known_listeners(self, topic: str) -> set[ID]:
        assert self.pubsub is not None
        known = set(self.known())
        return {peer for peer in self.pubsub.peer_topics.get(topic, ()) if str(peer) in known}

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Sends recent messages to a new subscriber through its queue; the library bypasses the queue, and frames
        interleave."""
        if self.peer_scorer.allow_publish(peer_id, [topic]) and self._send_again(peer_id, self.mcache.recent(topic)):
            self._sent_all_until[peer_id] = time.monotonic()

    def _send_again(self, peer: ID, messages: Iterable[rpc_pb2.Message]) -> bool:
        """Returns whether the peer's allowance was enough for all of them."""
        now = time.monotonic()
        allowed = self.allowances.of(peer, now_seconds=now).resent_bytes
        for message in messages:
            if not allowed.take(message.ByteSize(), now_seconds=now):
                return False
            self.send_rpc(peer, rpc_pb2.RPC(publish=[message]))
        return True

    def send_rpc(self, peer_id: ID, rpc: rpc_pb2.RPC, priority: bool = False) -> None:
        """Queues an RPC, or drops it where the queue is full. The library copies an RPC for every receiver."""
        assert self.pubsub is not None
        queue = self.pubsub.peer_queues.get(peer_id)
        if queue is not None:
            queue.push(rpc, priority=priority)

    # Control messages of peers

    async def handle_rpc(self, rpc: rpc_pb2.RPC, sender_peer_id: ID) -> None:
        now = time.monotonic()
        control, allowed = rpc.control, self.allowances.of(sender_peer_id, now_seconds=now)
        if control.idontwant and not (control.ihave or control.iwant or control.graft or control.prune):
            self._leave_out([key for each in control.idontwant for key in each.messageIDs], sender_peer_id)
            return
        if not allowed.controls.take(1.0, now_seconds=now):
            self.peer_scorer.penalize_behavior(sender_peer_id)
            return
        self._leave_out([key for each in control.idontwant for key in each.messageIDs], sender_peer_id)
        offered = [key for ihave in control.ihave if ihave.topicID in self.mesh for key in ihave.messageIDs]
        self._ask_for(offered, sender_peer_id)
        wanted = dict.fromkeys(key for iwant in control.iwant for key in iwant.messageIDs)
        self._send_again(sender_peer_id, [m for m in map(self.mcache.get, wanted) if m is not None])
        for topic in {graft.topicID for graft in control.graft} & self.mesh.keys():
            await self.handle_graft(rpc_pb2.ControlGraft(topicID=topic), sender_peer_id)
        for topic, seconds in {prune.topicID: prune.backoff for prune in control.prune}.items():
            if topic in self.mesh:
                backoff = min(seconds, MAX_PRUNE_SECONDS)
                await self.handle_prune(rpc_pb2.ControlPrune(topicID=topic, backoff=backoff), sender_peer_id)

    def _ask_for(self, offered: Iterable[bytes], peer: ID) -> None:
        assert self.pubsub is not None
        now = time.monotonic()
        allowed = self.allowances.of(peer, now_seconds=now).asked_ids
        unseen = (
            k for k in dict.fromkeys(offered) if len(k) == MESSAGE_ID_BYTES and not self.pubsub.seen_messages.has(k)
        )
        asked = []
        for key in unseen:
            if not allowed.take(1.0, now_seconds=now):
                break
            asked.append(key)
        if asked:
            wanted = rpc_pb2.ControlMessage(iwant=[rpc_pb2.ControlIWant(messageIDs=asked)])
            self.send_rpc(peer, rpc_pb2.RPC(control=wanted), priority=True)

    def _leave_out(self, unwanted: Iterable[bytes], peer: ID) -> None:
        assert self.pubsub is not None
        queue, now = self.pubsub.peer_queues.get(peer), time.monotonic()
        allowed = self.allowances.of(peer, now_seconds=now).unwanted_ids
        for key in dict.fromkeys(unwanted):
            if queue is None or len(key) != MESSAGE_ID_BYTES or not allowed.take(1.0, now_seconds=now):
                return
            cast(SendQueue, queue._queue).leave_out(key)

    def _add_back_off(self, peer: ID, topic: str, is_unsubscribe: bool, backoff_duration: int = 0) -> None:
        super()._add_back_off(peer, topic, is_unsubscribe, backoff_duration)
        until = self.back_off[topic]
        if len(until) > BACK_OFFS_PER_TOPIC:  # the one that ends first, which has ended or soon will
            del until[min(until, key=until.__getitem__)]

    # Control messages to peers

    def decline(self, topic: str, key: bytes, size_bytes: int, forwarder: ID) -> None:
        """Tells the neighbours in the mesh, except who sent it, that a large message is here."""
        if size_bytes < LARGE_BYTES:
            return
        rpc = rpc_pb2.RPC(control=rpc_pb2.ControlMessage(idontwant=[rpc_pb2.ControlIDontWant(messageIDs=[key])]))
        for peer in self.mesh.get(topic, set()) - {forwarder}:
            if self.peer_protocol.get(peer) == PROTOCOL_ID_V12:
                self.send_rpc(peer, rpc, priority=True)

    def _notify_mesh_peer_added(self, peer_id: ID, topic: str) -> None:
        super()._notify_mesh_peer_added(peer_id, topic)
        if recent := self.mcache.window(topic, after_seconds=self._sent_all_until.get(peer_id, 0.0)):
            ihave = rpc_pb2.ControlIHave(topicID=topic, messageIDs=recent)
            self.send_rpc(peer_id, rpc_pb2.RPC(control=rpc_pb2.ControlMessage(ihave=[ihave])), priority=True)

    def gossip_heartbeat(self) -> defaultdict[ID, dict[str, list[bytes]]]:
        """Returns by topic the ids to announce now to peers outside the mesh: to some of them, drawn by lot."""
        assert self.pubsub is not None
        told: defaultdict[ID, dict[str, list[bytes]]] = defaultdict(dict)
        for topic, forwarded_to in {**self.fanout, **self.mesh}.items():
            listeners = self.pubsub.peer_topics.get(topic, set()) & self.peer_protocol.keys()
            others = [p for p in listeners - forwarded_to if self.peer_scorer.allow_gossip(p, [topic])]
            ids = self.mcache.window(topic) if others else []
            if ids:
                for peer in self.select_from_minus(OFFERED_TO, others, ()):
                    told[peer][topic] = ids
        return told

    def _perform_opportunistic_grafting(self, topic: str, peers_to_graft: defaultdict[ID, list[str]]) -> int:
        """Grafts a known peer where too few are in the mesh. The library grafts one that it just pruned; both back off
        repeatedly, and the mesh becomes empty."""
        known, mesh = self._known_listeners(topic), self.mesh[topic]
        outside = [p for p in known - mesh if p in self.peer_protocol and not self._check_back_off(p, topic)]
        if len(known & mesh) >= self.degree_low or not outside:
            return 0
        (peer,) = self.select_from_minus(1, outside, ())
        mesh.add(peer)
        self._notify_mesh_peer_added(peer, topic)
        peers_to_graft[peer].append(topic)
        return 1

    def _score_based_pruning_selection(self, topic: str, mesh_peers: list[ID], num_to_prune: int) -> list[ID]:
        """Returns those with the lowest scores, known peers last."""
        known = self._known_listeners(topic)
        return sorted(mesh_peers, key=lambda p: (p in known, self.peer_scorer.score(p, [topic])))[:num_to_prune]

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
