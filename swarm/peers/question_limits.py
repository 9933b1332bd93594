"""How often a connected peer may ask: so many questions at once, and one each so many seconds afterwards."""

from __future__ import annotations

import anyio

from swarm.host import Host, PeerId
from swarm.token_bucket import TokenBucket


class QuestionLimits:
    """Keeps one bucket for each connected peer that asked; those of others are dropped when a new one asks."""

    def __init__(self, host: Host, *, at_once: int, every_seconds: float) -> None:
        self._host = host
        self._at_once = at_once
        self._every_seconds = every_seconds
        self._buckets: dict[PeerId, TokenBucket] = {}

    def may_ask(self, peer: PeerId) -> bool:
        """Counts one question, and returns True; or returns False."""
        now_seconds = anyio.current_time()
        if peer not in self._buckets:
            connected = set(self._host.peers())
            self._buckets = {p: bucket for p, bucket in self._buckets.items() if p in connected}
            self._buckets[peer] = TokenBucket(1 / self._every_seconds, self._at_once, now_seconds=now_seconds)
        return self._buckets[peer].take(1, now_seconds=now_seconds)
