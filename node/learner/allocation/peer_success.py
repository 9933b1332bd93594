"""What others announce of their success on each task, as one credible claim a task.

    credence of a claim  c = reputation · samples / (samples + HALF_BELIEVED)
    of a task            success = max(c · claimed) / max c,   weight = max c

The best claim counts, not the mean: one specialist among many shows that a task can be learnt, while the mean would
call it hopeless. A claim cannot be checked here, so all that follows from it is a prior of bounded weight
(``allocator``): whoever lies can make a node practise something in vain, no more than that prior's share of its round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swarm.api import PeerStatus

HALF_BELIEVED = 32  # samples of a claim that counts half
STALE_SECONDS = 120.0  # of a heartbeat


@dataclass(frozen=True, slots=True)
class Announced:
    """0 to 1 each; a task of which nobody credible says anything has none."""

    success: float
    weight: float


def announced_success(peers: Iterable[PeerStatus]) -> Mapping[str, Announced]:
    """By task, over those peers whose last heartbeat is fresh. A banned peer has no reputation and no say."""
    best: dict[str, tuple[float, float]] = {}  # task: (max c · claimed, max c)
    for peer in peers:
        if peer.heartbeat is None or peer.heartbeat_age_seconds is None or peer.heartbeat_age_seconds > STALE_SECONDS:
            continue
        for claim in peer.heartbeat.tasks:
            credence = peer.reputation * claim.samples / (claim.samples + HALF_BELIEVED)
            before = best.get(claim.task, (0.0, 0.0))
            best[claim.task] = max(before[0], credence * claim.success), max(before[1], credence)
    return {task: Announced(success / weight, weight) for task, (success, weight) in best.items() if weight > 0}
