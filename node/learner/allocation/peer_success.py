"""What others announce about their success on each task, as one credible claim per task.

    credence of a claim  c = reputation · samples / (samples + HALF_CREDENCE_SAMPLES)
    of a task            success = max(c · claimed) / max c,   weight = max c

The best claim counts, not the mean: one specialist among many shows that a task can be learnt, while the mean would
call it hopeless. A claim cannot be checked here, so it only yields a prior of bounded weight (``allocator``): a peer
that lies can make a node practise something without result, for no more than that prior's share of its round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swarm.api import PeerStatus

HALF_CREDENCE_SAMPLES = 32  # samples of a claim that counts half
STALE_SECONDS = 120.0  # of a heartbeat


@dataclass(frozen=True, slots=True)
class Announced:
    """One task's credible success and its weight, 0 to 1 each. A task without a credible claim has none."""

    success: float
    weight: float


def announced_success(peers: Iterable[PeerStatus]) -> Mapping[str, Announced]:
    """Returns claims by task, from peers whose last heartbeat is fresh. A banned peer has reputation 0: its claims do
    not count."""
    best: dict[str, tuple[float, float]] = {}  # task: (max c · claimed, max c)
    for peer in peers:
        if peer.heartbeat is None or peer.heartbeat_age_seconds is None or peer.heartbeat_age_seconds > STALE_SECONDS:
            continue
        for claim in peer.heartbeat.tasks:
            credence = peer.reputation * claim.samples / (claim.samples + HALF_CREDENCE_SAMPLES)
            before = best.get(claim.task, (0.0, 0.0))
            best[claim.task] = max(before[0], credence * claim.success), max(before[1], credence)
    return {task: Announced(success / weight, weight) for task, (success, weight) in best.items() if weight > 0}
