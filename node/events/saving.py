"""Events of what is kept on disk, and of the learner's end."""

from __future__ import annotations

from msgspec import Struct

from node.events.timed import TimedEvent


class CheckpointSaved(TimedEvent, frozen=True, kw_only=True, tag="checkpoint"):
    """A whole checkpoint is on disk."""

    round: int
    path: str
    size_bytes: int
    seconds: float


class NotSaved(TimedEvent, frozen=True, kw_only=True, tag="not_saved"):
    """What was learnt since the newest checkpoint is in memory alone, since no checkpoint can be written. It is tried
    again; the next ``CheckpointSaved`` ends this state."""

    round: int  # rounds done
    saved_round: int  # of the newest checkpoint; 0: there is none
    because: str
    retry_seconds: float  # until the next attempt
    ends_in_seconds: float | None = None  # the run has ended and waits this long for room, before it is lost


class DamagedCheckpoint(Struct, frozen=True):
    """A checkpoint that no run can continue from."""

    name: str  # its folder's former name
    because: str
    aside: str  # where it is now; nothing deletes it there. Where it could not be moved: its place


class CheckpointsDamaged(TimedEvent, frozen=True, kw_only=True, tag="checkpoints_damaged"):
    """Checkpoints are damaged and kept aside. Reported before ``LearnerReady``."""

    damaged: tuple[DamagedCheckpoint, ...]  # newest first
    continues_from: int | None  # the round of the newest whole one; None: none is left
    asks_peers: bool  # the weights of peers are asked for


class Stopped(TimedEvent, frozen=True, kw_only=True, tag="stopped"):
    """The learner's last line when it ends on purpose."""

    round: int
    because: str  # "rounds", "tokens", "asked", "paused", "supervisor gone"
    tokens_generated_total: int
    checkpoint: str | None
    lost: NotSaved | None = None  # what could not be saved, if anything
