"""Events of what generates."""

from __future__ import annotations

from msgspec import Struct

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


class DonorShare(Struct, frozen=True, kw_only=True):
    """What one donor did in a generation."""

    peer: str
    name: str  # as invited, or as the donor calls itself; shown escaped
    state: (
        str  # "preparing" (model or weights are not there yet), "ready" (given nothing), "generated", "lost", "dropped"
    )
    groups: int  # that it was given
    groups_done: int  # of these, complete by it
    tokens: int  # of it that are used
    tokens_per_second: float | None  # while it sampled
    share: float  # of all new tokens
    setup_seconds: float  # until it had the newest weights
    tokens_total: int  # used since the learner started
    because: str  # why it was lost or dropped; shown escaped


class DonorsShared(TimedEvent, frozen=True, kw_only=True, tag="donors"):
    """Who generated a round's groups, where donors were there."""

    groups: int  # launched
    own_groups: int  # of these given to the learner's own engine
    tokens: int
    seconds: float
    donors: tuple[DonorShare, ...]
