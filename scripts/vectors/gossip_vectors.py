"""Messages of GossipSub around announcements, with their ids."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.gossip_message import gossip_message_id
from protocol.identity import PEER_ID_PREFIX, NodeKey
from protocol.meeting_points import gossip_topic
from scripts.vectors.announcement_vectors import announcements
from scripts.vectors.plain_values import SEED, SWARM_ID, Json

SIGNING_PREFIX = b"libp2p-pubsub:"
FROM, DATA, SEQNO, TOPIC, SIGNATURE, KEY = range(1, 7)  # the fields of a message in protobuf


def gossip_messages() -> list[Json]:
    """An announcement as a message of two publishers, which has one id, and another announcement with another id."""
    heartbeat, goodbye = (bytes.fromhex(announcements()[place]["announcement"]) for place in (0, 2))
    topic = gossip_topic(SWARM_ID)
    cases = {
        "a heartbeat, published by its sender": (SEED, heartbeat, 1, False),
        "the same heartbeat, published by another peer": (b"\xff" * 32, heartbeat, 2**64 - 1, False),
        "a goodbye, with the key beside its peer id": (SEED, goodbye, 2, True),
    }
    return [
        {
            "name": name,
            "seed": seed.hex(),
            "topic": topic,
            "data": data.hex(),
            "seqno": seqno.to_bytes(8, "big").hex(),
            "message": _signed(NodeKey(seed), topic, data, seqno, with_key=with_key).hex(),
            "message_id": gossip_message_id(topic, data).decode(),
            "message_id_bytes": gossip_message_id(topic, data).hex(),
        }
        for name, (seed, data, seqno, with_key) in cases.items()
    ]


def _signed(key: NodeKey, topic: str, data: bytes, seqno: int, *, with_key: bool) -> bytes:
    publisher = PEER_ID_PREFIX + key.public_bytes
    unsigned = b"".join(
        [
            _field(FROM, publisher),
            _field(DATA, data),
            _field(SEQNO, seqno.to_bytes(8, "big")),
            _field(TOPIC, topic.encode()),
        ]
    )
    signature = Ed25519PrivateKey.from_private_bytes(key.private_bytes).sign(SIGNING_PREFIX + unsigned)
    public_key = publisher[2:] if with_key else b""  # libp2p's protobuf of a key, which an inline peer id holds
    return unsigned + _field(SIGNATURE, signature) + (_field(KEY, public_key) if with_key else b"")


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    low = bytes([number & 0x7F])
    return low if number < 0x80 else bytes([low[0] | 0x80]) + _varint(number >> 7)
