"""The cost of one round of averaging, for us and for contenders, and the interfaces' counters that measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.bench.common.slow_network import SlowPeer


@dataclass(frozen=True)
class AveragingRound:
    """``seconds`` until the last peer had its result; ``sent_bytes`` and ``processor_seconds``, of all processes, per
    peer; and the share of correct results."""

    seconds: float
    sent_bytes: float
    processor_seconds: float
    correct_share: float


def sent_bytes(peers: Sequence[SlowPeer]) -> float:
    """Returns the mean of what the peers have sent so far."""
    return sum(peer.traffic().sent_bytes for peer in peers) / len(peers)
