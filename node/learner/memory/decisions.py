"""What follows when a phase of the round ran out of memory. Pure: nothing here frees, waits or reads a clock.

    recompute from now on layers are computed again in the backward pass, which keeps a fifth; before a pass would have
              less than ``RECOMPUTE_BELOW`` tokens, where the architecture and the configuration allow it
    halve     the rows or the pass, whichever the phase takes; the phase is repeated
    again     nothing to halve: repeated as it is, twice at most, since what the attempt held has been given back
    skip      an optional phase (averaging, a checkpoint): left out this time
    wait      other programs hold a good part of the device: repeated after a delay that doubles up to five minutes
    give up   the smallest attempt fails on a device that is ours: this model does not fit with these settings

A long time without trouble doubles once what was halved, and then ends recomputation (``grown``), so that a neighbour
who came and went does not make a node slow for ever. If that was too much, it costs one more repeated phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from node.fit.fitted import Sizes, halved
from node.learner.memory.device_memory import DeviceMemory

Phase = Literal["generate", "learn", "average", "publish", "evaluate", "checkpoint", "offer state"]

MAX_REPEATS: Final = 2  # of a phase as it is, between two other remedies
FIRST_WAIT_SECONDS: Final = 5.0
MAX_WAIT_SECONDS: Final = 300.0
OTHERS_SHARE: Final = 0.1  # of the device, from which on other programs may be what is in the way
RECOMPUTE_BELOW: Final = 4096  # padded tokens of a pass; as ``node.fit.candidates.PASSES`` prefers
QUIET_ROUNDS: Final = 200  # without running out, before something is doubled again

SizeName = Literal["rows", "batch_tokens"]
KEYS: Final[Mapping[SizeName, str]] = {"rows": "engine.rows", "batch_tokens": "learner.batch_tokens"}


@dataclass(frozen=True, slots=True)
class PhaseRule:
    halves: SizeName | None
    required: bool  # the round cannot go on without it
    recomputes: bool = False  # recomputation makes it smaller


RULES: Final[Mapping[Phase, PhaseRule]] = {
    "generate": PhaseRule("rows", required=True),
    "learn": PhaseRule("batch_tokens", required=True, recomputes=True),
    "average": PhaseRule(None, required=False),
    "publish": PhaseRule(None, required=True),  # of new weights, to the engine
    "evaluate": PhaseRule("rows", required=False),
    "checkpoint": PhaseRule(None, required=False),
    "offer state": PhaseRule(None, required=False),  # to peers that start from ours
}


@dataclass(frozen=True, slots=True)
class Attempts:
    """What has been tried for one phase of one round so far."""

    repeats: int = 0  # as it was, since the last halving
    waits: int = 0


@dataclass(frozen=True, slots=True)
class MemoryDecision:
    then: Literal["recompute", "halve", "again", "skip", "wait", "give up"]
    sizes: Sizes  # from now on
    attempts: Attempts
    halved: SizeName | None = None
    wait_seconds: float = 0.0


def decide(
    phase: Phase, sizes: Sizes, floors: Sizes, attempts: Attempts, memory: DeviceMemory | None
) -> MemoryDecision:
    """Decides after one more failed attempt. ``memory`` is that of the device after everything was given back.

    ``floors`` say what ``sizes`` may come down to, and whether recomputation may be switched on.
    """
    rule = RULES[phase]
    if rule.halves is not None:
        before = getattr(sizes, rule.halves)
        after = halved(before, getattr(floors, rule.halves))
        if rule.recomputes and floors.recompute and not sizes.recompute and after < RECOMPUTE_BELOW:
            return MemoryDecision("recompute", replace(sizes, recompute=True), replace(attempts, repeats=0))
        if after < before:
            changed: dict[str, Any] = {rule.halves: after}
            smaller = replace(sizes, **changed)
            return MemoryDecision("halve", smaller, replace(attempts, repeats=0), rule.halves)
    if attempts.repeats < MAX_REPEATS:
        return MemoryDecision("again", sizes, replace(attempts, repeats=attempts.repeats + 1))
    if not rule.required:
        return MemoryDecision("skip", sizes, attempts)
    if memory is not None and memory.others_bytes >= OTHERS_SHARE * memory.total_bytes:
        delay = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(attempts.waits, 16))
        return MemoryDecision("wait", sizes, replace(attempts, waits=attempts.waits + 1), wait_seconds=delay)
    return MemoryDecision("give up", sizes, attempts)


def grown(sizes: Sizes, most: Sizes, quiet_rounds: int) -> Sizes:
    """Returns the sizes after so many rounds without running out: every ``QUIET_ROUNDS`` doubled towards ``most``, and
    where they are at that, without recomputation that ``most`` does not have."""
    if quiet_rounds == 0 or quiet_rounds % QUIET_ROUNDS:
        return sizes
    larger = replace(sizes, rows=2 * sizes.rows, batch_tokens=2 * sizes.batch_tokens).within(most)
    return most if larger == sizes else larger
