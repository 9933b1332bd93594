"""What one round finds out on its way, and how long each part took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from node.learner.exchange import Incoming
from node.tasks.scorer import Scores


class Stopwatch:
    """Seconds by phase of a round. Monotonic; only ever reported, never decided by but for how long to wait."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, phase: str) -> float:
        """Ends ``phase``, which began when the one before ended; returns its seconds."""
        now = time.monotonic()
        self.seconds[phase], self._last = now - self._last, now
        return self.seconds[phase]

    def total(self) -> float:
        return self._last - self._began


@dataclass(slots=True)
class RoundRecord:
    """What a round finds out on its way."""

    own_groups: int = 0
    own_groups_informative: int = 0
    tokens_generated: int = 0
    foreign_groups_used: int = 0  # for the first time
    foreign_groups_replayed: int = 0
    foreign_rejected: Counter[str] = field(default_factory=Counter)
    bytes_fetched: int = 0
    groups_shared: int = 0
    scoring_failures: int = 0
    alone_because: str | None = None
    reward_by_task: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0

    def incoming(self, incoming: Incoming) -> None:
        self.foreign_rejected.update(incoming.rejected)
        self.bytes_fetched = incoming.bytes_fetched
        self.alone_because = incoming.alone_because

    def rewards(self, rewards_by_task: Mapping[str, Sequence[float]], scores: Sequence[Scores]) -> None:
        self.reward_by_task = {task: sum(r) / len(r) for task, r in sorted(rewards_by_task.items()) if r}
        everything = [reward for rewards in rewards_by_task.values() for reward in rewards]
        self.reward = sum(everything) / len(everything) if everything else 0.0
        self.scoring_failures = sum(fault is not None for each in scores for fault in each.faults)
