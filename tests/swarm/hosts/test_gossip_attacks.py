"""One stranger writes RPCs of GossipSub by hand to a py-libp2p host on loopback: what it causes, and what it cannot."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import anyio
import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import create_new_key_pair as create_rsa_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from protocol import limits
from protocol.errors import TransportError
from swarm.host import GossipVerdict, PeerId
from swarm.hosts.libp2p.gossipsub import allowances, pubsub
from swarm.hosts.libp2p.gossipsub.messages import message_id
from swarm.hosts.libp2p.gossipsub.rpc_bounds import RpcRefusal
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

TOPIC = "test"
PROTOCOL = "/meshsub/1.1.0"
KEYS = create_new_key_pair(seed=bytes(31) + b"\1")


def signed(data: bytes, pair: Any = KEYS, topics: Sequence[str] = (TOPIC,)) -> rpc_pb2.Message:
    message = rpc_pb2.Message(
        from_id=ID.from_pubkey(pair.public_key).to_bytes(), data=data, seqno=bytes(8), topicIDs=topics
    )
    message.signature = pair.private_key.sign(b"libp2p-pubsub:" + message.SerializeToString())
    message.key = pair.public_key.serialize()
    return message


def unsigned(number: int) -> rpc_pb2.Message:
    return rpc_pb2.Message(data=b"%d" % number, topicIDs=[TOPIC])


def framed(rpc: rpc_pb2.RPC | bytes) -> bytes:
    raw = rpc if isinstance(rpc, bytes) else rpc.SerializeToString()
    length, prefix = len(raw), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + raw


class Attacked:
    """A victim that listens to a topic, and a stranger with a stream to it."""

    def __init__(self, world: Any, stranger: Libp2pHost, victim: Libp2pHost) -> None:
        self.world, self.stranger, self.victim = world, stranger, victim
        self.judged: list[bytes] = []
        self.heard: list[bytes] = []

    async def start(self) -> None:
        await self.victim.subscribe(TOPIC, self._judge, lambda peer, message: self.heard.append(message))
        await self.stranger.connect(self.victim.addresses()[0], deadline_seconds=10)
        await self.world.eventually(lambda: self.pubsub.peer_queues and self._known())
        self.stream = await self.stranger.open_stream(self.victim.peer_id, PROTOCOL, deadline_seconds=10)

    def _judge(self, peer: PeerId, message: bytes) -> GossipVerdict:
        self.judged.append(message)
        return GossipVerdict.REJECT if message.startswith(b"bad") else GossipVerdict.ACCEPT

    def _known(self) -> bool:
        return bool(self.stranger._pubsub.peer_topics.get(TOPIC))

    @property
    def pubsub(self) -> pubsub.VerdictPubsub:
        return self.victim._pubsub

    @property
    def stranger_id(self) -> ID:
        return ID.from_string(self.stranger.peer_id)

    async def send(self, *rpcs: rpc_pb2.RPC | bytes) -> None:
        for rpc in rpcs:
            await self.stream.send(framed(rpc))

    async def send_until_expelled(self, rpc: rpc_pb2.RPC | bytes) -> None:
        with contextlib.suppress(TransportError):
            for _ in range(1000):
                await self.send(rpc)
        await self.expelled()

    async def expelled(self) -> None:
        await self.world.eventually(lambda: self.stranger.peer_id not in self.victim.peers())


@pytest.fixture
def attacked(tell_on_sockets: Any) -> Callable[[Any], None]:
    def play(story: Any) -> None:
        async def setting(world: Any, tasks: trio.Nursery) -> None:
            stranger, victim = await world.start(tasks, 2)
            scene = Attacked(world, stranger, victim)
            await scene.start()
            await story(scene)

        tell_on_sockets(setting)

    return play


@pytest.mark.parametrize(
    ("refusal", "raw"),
    [
        (RpcRefusal.MALFORMED, b"\xff" * 5),
        (RpcRefusal.MESSAGES, b"\x12\x00" * 4000),
        (RpcRefusal.FIELDS, b"\x78\x01" * 100_000),
    ],
)
def test_peer_that_breaks_a_bound_is_disconnected_and_counted(attacked, refusal: RpcRefusal, raw: bytes) -> None:
    async def story(scene: Attacked) -> None:
        await scene.send(raw)
        await scene.expelled()
        assert scene.victim.faults == {refusal: 1}

    attacked(story)


def test_peer_that_was_expelled_is_disconnected_again_when_it_returns(attacked) -> None:
    async def story(scene: Attacked) -> None:
        await scene.send(b"\xff" * 5)
        await scene.expelled()
        await scene.world.eventually(lambda: not scene.stranger.peers())
        await scene.stranger.connect(scene.victim.addresses()[0], deadline_seconds=10)
        await scene.expelled()

    attacked(story)


def test_unsigned_messages_mute_their_sender_whose_next_ones_are_not_looked_at(attacked) -> None:
    async def story(scene: Attacked) -> None:
        await scene.send(rpc_pb2.RPC(publish=[*map(unsigned, range(300)), signed(b"after")]))
        await scene.send(rpc_pb2.RPC(publish=[signed(b"in the next RPC")]))
        await scene.world.eventually(lambda: scene.victim.gossip_score(scene.stranger.peer_id, TOPIC) < -10)
        await trio.sleep(0.1)
        assert not scene.judged
        assert scene.victim.gossip_score(scene.stranger.peer_id, TOPIC) > -12  # the others of the RPC cost no time

    attacked(story)


def test_muted_peer_that_goes_on_sending_is_disconnected_and_its_points_outlast_the_connection(attacked) -> None:
    async def story(scene: Attacked) -> None:
        await scene.send(*(rpc_pb2.RPC(publish=[signed(b"bad %d" % n)]) for n in range(12)))
        await scene.send_until_expelled(rpc_pb2.RPC(publish=[signed(b"good")]))
        assert scene.victim.faults == {RpcRefusal.MUTED: 1}
        assert len(scene.judged) < 15
        assert scene.victim.gossip_score(scene.stranger.peer_id, TOPIC) < -10

    attacked(story)


@pytest.mark.parametrize(
    "rpc",
    [
        b"",
        b"\x78\x01",
        rpc_pb2.RPC(publish=[rpc_pb2.Message()]),
        rpc_pb2.RPC(control=rpc_pb2.ControlMessage(iwant=[rpc_pb2.ControlIWant(messageIDs=[b"x"])])),
    ],
)
def test_peer_that_sends_small_talk_without_end_is_disconnected(attacked, rpc: rpc_pb2.RPC | bytes) -> None:
    async def story(scene: Attacked) -> None:
        await scene.send_until_expelled(rpc)
        assert scene.victim.faults == {RpcRefusal.MUTED: 1}

    attacked(story)


def test_message_by_an_rsa_key_is_refused_without_verifying_it(attacked) -> None:
    async def story(scene: Attacked) -> None:
        await scene.send(rpc_pb2.RPC(publish=[signed(b"rsa", create_rsa_key_pair()), signed(b"ed25519")]))
        await scene.world.eventually(lambda: bool(scene.judged))
        assert scene.judged == [b"ed25519"]

    attacked(story)


def test_one_id_wanted_many_times_is_sent_once_an_rpc_and_within_the_allowance(
    attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowances, "RESENT_BYTES_PER_SECOND", 1.0)
    monkeypatch.setattr(allowances, "RESENT_BYTES_AT_ONCE", 400_000.0)

    async def story(scene: Attacked) -> None:
        large = signed(bytes(limits.ANNOUNCEMENT_BYTES))
        sent: list[int] = []
        send_rpc = scene.pubsub.mesh.send_rpc

        def counting(peer_id: ID, rpc: rpc_pb2.RPC, priority: bool = False) -> None:
            sent.append(len(rpc.publish))
            send_rpc(peer_id, rpc, priority)

        scene.pubsub.mesh.send_rpc = counting  # type: ignore[method-assign]
        wanted = rpc_pb2.ControlIWant(messageIDs=[message_id(large)] * 4000)
        await scene.send(rpc_pb2.RPC(publish=[large]))
        await scene.world.eventually(lambda: bool(scene.heard))
        sent.clear()
        await scene.send(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(iwant=[wanted])))
        await scene.world.eventually(lambda: sum(sent) > 0)
        assert sum(sent) == 1
        await scene.send(*[rpc_pb2.RPC(control=rpc_pb2.ControlMessage(iwant=[wanted]))] * 20)
        await scene.send(rpc_pb2.RPC(publish=[signed(b"end")]))
        await scene.world.eventually(lambda: b"end" in scene.heard)
        assert sum(sent) == 400_000 // large.ByteSize()

    attacked(story)


def test_made_up_ids_are_asked_for_within_the_allowance(attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances, "ASKED_IDS_PER_SECOND", 1e-3)

    async def story(scene: Attacked) -> None:
        asked: list[bytes] = []
        scene.pubsub.mesh.send_rpc = lambda peer_id, rpc, priority=False: asked.extend(  # type: ignore[method-assign]
            key for iwant in rpc.control.iwant for key in iwant.messageIDs
        )
        for start in range(0, 20_000, 4000):
            ihave = rpc_pb2.ControlIHave(
                topicID=TOPIC, messageIDs=[b"%024d" % (n // 2) for n in range(start, start + 4000)]
            )
            await scene.send(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(ihave=[ihave])))
        await scene.send(rpc_pb2.RPC(publish=[signed(b"end")]))
        await scene.world.eventually(lambda: b"end" in scene.heard)
        assert len(asked) == len(set(asked)) == allowances.ASKED_IDS_AT_ONCE

    attacked(story)


def test_topics_that_nobody_has_leave_nothing_behind(attacked) -> None:
    async def story(scene: Attacked) -> None:
        mesh = scene.pubsub.mesh
        topics = [f"made up {n}" for n in range(200)]
        control = rpc_pb2.ControlMessage(
            graft=[rpc_pb2.ControlGraft(topicID=t) for t in topics[:100]],
            prune=[rpc_pb2.ControlPrune(topicID=t, backoff=2**60) for t in topics[100:]],
        )
        await scene.send(rpc_pb2.RPC(control=control))
        await scene.send(
            rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=t) for t in topics]),
            rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid="x" * 100_000)]),
            rpc_pb2.RPC(publish=[signed(b"elsewhere", topics=("made up",)), signed(b"end")]),
        )
        await scene.world.eventually(lambda: b"end" in scene.heard)
        assert not any(name.startswith("made up") for name in (*mesh.back_off, *mesh.fanout, *mesh.mesh))
        assert set(mesh.graft_flood_tracking[scene.stranger_id]) <= {TOPIC}
        assert len(scene.pubsub.peer_topics) <= limits.GOSSIP_TOPICS_PER_PEER
        assert all(len(topic) <= limits.GOSSIP_TOPIC_CHARACTERS for topic in scene.pubsub.peer_topics)

    attacked(story)


def test_peers_named_in_a_prune_are_not_dialled(attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Attacked) -> None:
        dialled: list[Any] = []

        async def connect(peer: Any) -> None:
            dialled.append(peer)

        monkeypatch.setattr(scene.victim._host, "connect", connect)
        other = ID.from_pubkey(create_new_key_pair().public_key)
        scene.victim._network.peerstore.add_addrs(other, [], 100)
        prune = rpc_pb2.ControlPrune(topicID=TOPIC, peers=[rpc_pb2.PeerInfo(peerID=other.to_bytes())], backoff=2**63)
        await scene.send(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(prune=[prune])))
        await scene.send(rpc_pb2.RPC(publish=[signed(b"end")]))
        await scene.world.eventually(lambda: b"end" in scene.heard)
        assert not dialled
        assert scene.stranger_id not in scene.pubsub.mesh.mesh[TOPIC]

    attacked(story)


def test_peer_that_subscribes_again_and_again_is_sent_the_recent_messages_within_its_allowance(attacked) -> None:
    async def story(scene: Attacked) -> None:
        await scene.send(*(rpc_pb2.RPC(publish=[signed(b"%d" % n + bytes(50_000))]) for n in range(5)))
        await scene.world.eventually(lambda: len(scene.heard) == 5)
        changes = [rpc_pb2.RPC.SubOpts(subscribe=bool(n % 2), topicid=TOPIC) for n in range(8)]
        before = scene.victim.traffic().sent_bytes
        await scene.send_until_expelled(rpc_pb2.RPC(subscriptions=changes))
        assert scene.victim.traffic().sent_bytes - before < 2 * allowances.RESENT_BYTES_AT_ONCE

    attacked(story)


def test_only_the_newest_streams_of_a_peer_are_read(attacked) -> None:
    async def story(scene: Attacked) -> None:
        opened = [
            await scene.stranger.open_stream(scene.victim.peer_id, PROTOCOL, deadline_seconds=10) for _ in range(20)
        ]
        for stream in opened:  # the beginning of an RPC that never ends
            with contextlib.suppress(TransportError):
                await stream.send(b"\xff\xff\x03" + bytes(1000))
        await scene.world.eventually(lambda: len(scene.pubsub._incoming[scene.stranger_id]) == pubsub.STREAMS_PER_PEER)

    attacked(story)


def test_what_a_peer_costs_beyond_its_share_it_waits_for(attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await trio.lowlevel.checkpoint()

    async def story(scene: Attacked) -> None:
        monkeypatch.setattr(anyio, "sleep", sleep)
        now = iter(range(0, 10**9, 1))
        monkeypatch.setattr(time, "thread_time", lambda: next(now) * 0.05)  # every message takes so long
        await scene.send(rpc_pb2.RPC(publish=[signed(b"%d" % n) for n in range(40)]))
        await scene.world.eventually(lambda: len(scene.heard) == 40)
        most = (40 * 0.05 - allowances.OWN_BURST - allowances.COMMON_BURST) / allowances.COMMON_RATE
        assert max(waits) == pytest.approx(most, rel=0.2)

    attacked(story)


def test_mutated_rpcs_are_refused_or_taken_and_raise_nothing_else(attacked) -> None:
    async def story(scene: Attacked) -> None:
        random, mesh = Random(3), scene.pubsub.mesh
        control = rpc_pb2.ControlMessage(
            ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[b"i" * 24])],
            iwant=[rpc_pb2.ControlIWant(messageIDs=[b"i" * 24])],
            graft=[rpc_pb2.ControlGraft(topicID=TOPIC)],
            prune=[rpc_pb2.ControlPrune(topicID=TOPIC, backoff=1, peers=[rpc_pb2.PeerInfo(peerID=b"p")])],
            idontwant=[rpc_pb2.ControlIDontWant(messageIDs=[b"i"])],
        )
        subscription = rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)
        honest = rpc_pb2.RPC(publish=[signed(b"m"), unsigned(1)], control=control, subscriptions=[subscription])
        taken = 0
        for _ in range(3000):
            raw = bytearray(honest.SerializeToString())
            for _ in range(random.randrange(1, 4)):
                raw[random.randrange(len(raw))] = random.choice((0, 1, 2, 10, 18, 34, 0x7F, 0x80, 0xFF))
            for table in (mesh.peer_scorer.behavior_penalty, mesh.peer_scorer.invalid_messages):
                table.clear()
            mesh.allowances = allowances.Allowances()
            try:
                await scene.pubsub._take_rpc(scene.stranger_id, bytes(raw))
                taken += 1
            except pubsub.RefusedRpcError:
                continue
        assert taken > 300
        assert scene.world.bugs == []

    attacked(story)
