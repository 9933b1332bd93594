"""Messages of GossipSub as docs/protocol.md specifies them, read by the host."""

from __future__ import annotations

import json
from typing import Any

import pytest
from libp2p.pubsub.pb import rpc_pb2

from scripts.make_vectors import FOLDER
from swarm.hosts.libp2p.gossipsub.messages import is_signed, message_id

VECTORS = json.loads((FOLDER / "gossip_messages.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_gossip_message(vector: Any) -> None:
    message = rpc_pb2.Message.FromString(bytes.fromhex(vector["message"]))
    assert list(message.topicIDs) == [vector["topic"]]
    assert (message.data.hex(), message.seqno.hex()) == (vector["data"], vector["seqno"])
    assert message_id(message).decode() == vector["message_id"]
    assert is_signed(message)
    message.seqno = bytes(8)
    assert not is_signed(message)


def test_one_announcement_of_two_publishers_is_one_message() -> None:
    first, second, other = (vector["message_id"] for vector in VECTORS)
    assert first == second != other
