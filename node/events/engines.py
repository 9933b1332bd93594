"""Events of what generates."""

from __future__ import annotations

from node.events.timed import TimedEvent


class EngineChanged(TimedEvent, frozen=True, kw_only=True, tag="engine"):
    """Which engine generates: reported at the start, and when one in a process of its own is lost, is back, or is given
    up. No round is lost by it: what was unfinished is generated anew."""

    backend: str  # that generates, or will again: "torch" in the learner's process, the others in one of their own
    configured: str  # what ``engine.backend`` led to
    running: bool
    because: str
    losses: int = 0  # of the engine, since the learner started
    retry_seconds: float | None = None  # until it is started again

    @property
    def is_as_configured(self) -> bool:
        """Whether the engine that was asked for generates."""
        return self.running and self.backend == self.configured
