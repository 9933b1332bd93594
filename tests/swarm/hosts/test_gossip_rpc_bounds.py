"""Bounds on the bytes of one RPC of GossipSub: what each refuses, and that nothing else is ever raised."""

from __future__ import annotations

from collections.abc import Sized
from random import Random

import pytest
from google.protobuf.message import DecodeError
from libp2p.pubsub.pb import rpc_pb2

from protocol import limits
from swarm.hosts.libp2p.gossipsub.rpc_bounds import RpcRefusal, rpc_refusal

ID = b"i" * 24


def control(**messages: object) -> bytes:
    return rpc_pb2.RPC(control=rpc_pb2.ControlMessage(**messages)).SerializeToString()  # type: ignore[arg-type]


def publish(number: int, topics: int = 1) -> bytes:
    message = rpc_pb2.Message(from_id=b"f" * 38, data=b"data", seqno=b"1" * 8, topicIDs=["t"] * topics)
    return rpc_pb2.RPC(publish=[message] * number).SerializeToString()


def subscribe(number: int) -> bytes:
    return rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid="t")] * number).SerializeToString()


def ihave(ids: int, times: int = 1) -> bytes:
    return control(ihave=[rpc_pb2.ControlIHave(topicID="t", messageIDs=[ID] * ids)] * times)


def prune(peers: int) -> bytes:
    return control(prune=[rpc_pb2.ControlPrune(topicID="t", peers=[rpc_pb2.PeerInfo(peerID=ID)] * peers)])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        publish(limits.GOSSIP_RPC_MESSAGES),
        subscribe(limits.GOSSIP_RPC_SUBSCRIPTIONS),
        ihave(limits.GOSSIP_RPC_IDS),
        control(iwant=[rpc_pb2.ControlIWant(messageIDs=[ID] * limits.GOSSIP_RPC_IDS)]),
        control(graft=[rpc_pb2.ControlGraft(topicID="t")] * (limits.GOSSIP_RPC_CONTROLS - 1)),
        prune(limits.GOSSIP_RPC_IDS),
        b"\x7a\x03abc",  # field 15: of a later version
    ],
)
def test_what_an_honest_peer_may_send_passes(raw: bytes) -> None:
    assert rpc_refusal(raw) is None


@pytest.mark.parametrize(
    ("refusal", "raw"),
    [
        (RpcRefusal.OVERSIZED, bytes(limits.GOSSIP_RPC_BYTES + 1)),
        (RpcRefusal.MESSAGES, publish(limits.GOSSIP_RPC_MESSAGES + 1)),
        (RpcRefusal.MESSAGES, b"\x12\x00" * 500_000),
        (RpcRefusal.SUBSCRIPTIONS, subscribe(limits.GOSSIP_RPC_SUBSCRIPTIONS + 1)),
        (RpcRefusal.IDS, ihave(limits.GOSSIP_RPC_IDS + 1)),
        (RpcRefusal.IDS, ihave(limits.GOSSIP_RPC_IDS // 50, times=51)),
        (RpcRefusal.IDS, ihave(limits.GOSSIP_RPC_IDS) + ihave(1)),  # a repeated ``control`` is merged
        (RpcRefusal.IDS, prune(limits.GOSSIP_RPC_IDS + 1)),
        (RpcRefusal.IDS, publish(1, topics=limits.GOSSIP_RPC_IDS + 1)),
        (RpcRefusal.CONTROLS, ihave(0, times=limits.GOSSIP_RPC_CONTROLS)),
        (RpcRefusal.CONTROLS, b"\x1a\x00" * (limits.GOSSIP_RPC_CONTROLS + 1)),
        (RpcRefusal.FIELDS, b"\x78\x01" * (limits.GOSSIP_RPC_FIELDS + 1)),
        (RpcRefusal.FIELDS, b"\x12" + b"\xa0\xe0\x01" + b"\x78\x01" * (0x7020 // 2)),  # within a message
        (RpcRefusal.MALFORMED, b"\x12"),
        (RpcRefusal.MALFORMED, b"\x12\x05abc"),
        (RpcRefusal.MALFORMED, b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        (RpcRefusal.MALFORMED, b"\x78" + b"\xff" * 20),  # a number without an end
        (RpcRefusal.MALFORMED, b"\x7b" * 1000),  # groups
        (RpcRefusal.MALFORMED, b"\x00\x00"),  # field 0
        (RpcRefusal.MALFORMED, b"\x7e\x01"),  # no such wire type
        (RpcRefusal.MALFORMED, b"\x79" + bytes(7)),
        (RpcRefusal.MALFORMED, b"\x1a\x03\x0a\x05abc"),  # what is nested claims more than holds it
    ],
)
def test_what_no_honest_peer_sends_is_refused_by_name(refusal: RpcRefusal, raw: bytes) -> None:
    assert rpc_refusal(raw) is refusal


def counted(rpc: rpc_pb2.RPC) -> dict[RpcRefusal, int]:
    """What protobuf made of an RPC."""
    control = rpc.control
    kinds: tuple[Sized, ...] = (control.ihave, control.iwant, control.graft, control.prune, control.idontwant)
    return {
        RpcRefusal.MESSAGES: len(rpc.publish),
        RpcRefusal.SUBSCRIPTIONS: len(rpc.subscriptions),
        RpcRefusal.CONTROLS: sum(len(kind) for kind in kinds),
        RpcRefusal.IDS: sum(len(m.topicIDs) for m in rpc.publish)
        + sum(len(m.messageIDs) for kind in (control.ihave, control.iwant, control.idontwant) for m in kind)
        + sum(len(m.peers) for m in control.prune),
    }


def test_nothing_that_passes_becomes_more_objects_than_the_bounds_whatever_the_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MESSAGES", "SUBSCRIPTIONS", "CONTROLS", "IDS"):
        monkeypatch.setattr(limits, f"GOSSIP_RPC_{name}", 6)
    monkeypatch.setattr(limits, "GOSSIP_RPC_FIELDS", 40)
    random = Random(5)
    honest = [publish(3), subscribe(4), ihave(3), prune(3), publish(2) + ihave(2) + subscribe(2)]
    passed = 0
    for _ in range(40_000):
        raw = bytearray(b"".join(random.choices(honest, k=random.randrange(1, 4))))
        for _ in range(random.randrange(4)):
            place = random.randrange(len(raw))
            edit = random.randrange(3)
            if edit == 0:
                raw[place] = random.choice((0, 1, 2, 8, 10, 18, 26, 34, 42, 0x7F, 0x80, 0xFF, random.randrange(256)))
            elif edit == 1:
                del raw[place : place + random.randrange(1, 9)]
            else:
                raw[place:place] = raw[place : place + random.randrange(1, 30)]
            raw = raw or bytearray(b"\x12\x00")
        if rpc_refusal(bytes(raw)) is not None:
            continue
        try:
            rpc = rpc_pb2.RPC.FromString(bytes(raw))
        except DecodeError:
            continue
        passed += 1
        assert all(count <= 6 for count in counted(rpc).values())
    assert passed > 2000


def test_random_bytes_are_refused_or_pass_and_raise_nothing() -> None:
    random = Random(6)
    for _ in range(50_000):
        rpc_refusal(random.randbytes(random.randrange(40)))
