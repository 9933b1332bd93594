"""What one round of averaging took, whoever averaged, and the interfaces' counters that tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slow_network import SlowPeer


@dataclass(frozen=True)
class Round:
    """``seconds`` until the last peer had its result, ``sent_bytes`` a peer, and peers whose result was right."""

    seconds: float
    sent_bytes: float
    right_share: float


def sent_bytes(peers: Sequence[SlowPeer]) -> float:
    """So far, a peer, on average."""
    return sum(peer.traffic().sent_bytes for peer in peers) / len(peers)
