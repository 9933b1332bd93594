"""The peers that a host refuses, as many as it remembers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

MAX_BLOCKED_PEERS = 4096  # above that the earliest is let in again; as another identity it would be too
Peer = TypeVar("Peer", bound=Hashable)


class BlockedPeers(Generic[Peer]):
    """``Peer`` is the type by which the host's library knows peers."""

    def __init__(self) -> None:
        self._peers: dict[Peer, None] = {}  # the earliest first

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    def block(self, peer: Peer) -> Peer | None:
        """Returns the peer that is let in again in exchange, if there is one."""
        self._peers[peer] = None
        if len(self._peers) <= MAX_BLOCKED_PEERS:
            return None
        earliest = next(iter(self._peers))
        del self._peers[earliest]
        return earliest
