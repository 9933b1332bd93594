"""The names under which the members of a swarm find each other: a gossip topic and a key of libp2p's DHT."""

from __future__ import annotations

import hashlib

from protocol import limits

SHA2_256 = b"\x12"  # its number in the table of multihashes


def gossip_topic(swarm_id: bytes) -> str:
    """The GossipSub topic of a swarm's announcements."""
    return f"starling/{limits.PROTOCOL_MAJOR}/{swarm_id.hex()}"


def dht_key(swarm_id: bytes) -> bytes:
    """The digest (32 bytes) that stands for a swarm in the DHT: members provide themselves under its multihash."""
    return hashlib.sha256(b"starling/swarm/1\0" + swarm_id).digest()


def multihash(sha256_digest: bytes) -> bytes:
    """The key (34 bytes) of provider records for what has this SHA-256, as every libp2p computes it from a CID."""
    return SHA2_256 + len(sha256_digest).to_bytes(1) + sha256_digest
