"""The names under which the members of a swarm find each other: a gossip topic and a key of libp2p's DHT."""

from __future__ import annotations

import hashlib

from protocol import limits


def gossip_topic(swarm_id: bytes) -> str:
    """The GossipSub topic of a swarm's announcements."""
    return f"starling/{limits.PROTOCOL_MAJOR}/{swarm_id.hex()}"


def dht_key(swarm_id: bytes) -> bytes:
    """The DHT key (32 bytes) under which members of a swarm provide themselves."""
    return hashlib.sha256(b"starling/swarm/1\0" + swarm_id).digest()
