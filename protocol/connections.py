"""The peers to which a node is connected, in the few bytes that a heartbeat has for them.

    prefix      first 4 bytes of SHA-256("starling/connection/1\\0" ‖ peer id in base58)
    field       prefixes one after the other, in ascending order, at most ``limits.CONNECTION_PREFIXES``

It is for pictures of a swarm: a claim, unchecked, and a prefix may fit two nodes. Nothing may be decided by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from protocol import limits

PREFIX_BYTES: Final = limits.CONNECTION_PREFIX_BYTES
_DOMAIN: Final = b"starling/connection/1\0"


def connection_prefix(peer: str) -> bytes:
    """Returns the prefix of a peer id."""
    return hashlib.sha256(_DOMAIN + peer.encode()).digest()[:PREFIX_BYTES]


def connections_field(peers: Iterable[str]) -> bytes:
    """Returns the field for these peers; where there are more than the bound, for those with the smallest prefixes."""
    return b"".join(sorted(set(map(connection_prefix, peers)))[: limits.CONNECTION_PREFIXES])
