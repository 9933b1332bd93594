"""Events of what went wrong."""

from __future__ import annotations

from typing import Literal

from node.events.timed import TimedEvent


class Fault(TimedEvent, frozen=True, kw_only=True, tag="fault"):
    """Something went wrong; the run continues unless this is ``fatal``."""

    kind: str  # the ``reason`` of the StarlingError, or "checkpoint", "gradient", "prompt_too_long", "scoring"
    detail: str
    round: int
    fatal: bool


class OutOfMemory(TimedEvent, frozen=True, kw_only=True, tag="out_of_memory"):
    """Memory ran out in a phase of a round. What the phase had begun was dropped; no round is lost by it."""

    round: int  # under way
    phase: str  # "generate", "learn", "average", "publish", "checkpoint", "offer state"
    # What follows: ``node.learner.memory.decisions``.
    then: Literal["recompute", "halve", "again", "skip", "wait", "give up"]
    detail: str  # of the error
    key: str | None = None  # the setting that was halved: "engine.rows" or "learner.batch_tokens"
    before: int | None = None  # its value
    after: int | None = None
    wait_seconds: float = 0.0  # until the phase is repeated
    total_bytes: int | None = None  # of the device; None where it is a CPU
    free_bytes: int | None = None  # after everything was given back
    others_bytes: int | None = None  # held by other programs
