"""What a node says once, in the first minute of a start: what it begins with, and when the first result comes.

Nothing is promised: times follow from the rounds just measured, and what became of earlier rounds from the record.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final

from node.api.types import GainsAnswer
from node.events import RoundDone
from node.quantities import counted

MEASURED_ROUNDS: Final = 3  # of which the first also compiles
MEASURED_SECONDS: Final = 10.0  # fewer rounds that took so long are enough

ALONE: Final = "It trains alone so far, from its own answers; with a peer it also learns from those of the peer."


class Outlook:
    """Sees every round of one start. Not for concurrent use."""

    def __init__(self, rounds: int, evaluated_every: int) -> None:
        """``rounds``: after which the start ends. ``evaluated_every``: rounds between two evaluations. 0 for never."""
        self._rounds, self._evaluated_every = rounds, evaluated_every
        self._seconds: list[float] = []
        self._told = False

    def saw(self, done: RoundDone, gains: Callable[[], GainsAnswer], *, alone: bool) -> list[str]:
        """Returns lines for people after the first rounds, once."""
        if self._told:
            return []
        self._seconds.append(done.seconds)
        if len(self._seconds) < MEASURED_ROUNDS and sum(self._seconds) < MEASURED_SECONDS:
            return []
        self._told = True
        said = f"{self._begins(done, gains())} {self._next(done.round)}".strip()
        return [said, ALONE] if alone else [said]

    def _begins(self, done: RoundDone, gains: GainsAnswer) -> str:
        if done.round > len(self._seconds):
            return f"Going on. {gains.sentence}"
        if gains.mean_first is None:
            return ""
        return f"It begins with a mean reward of {gains.mean_first:.2f} over {counted(len(gains.tasks), 'task')}."

    def _next(self, done: int) -> str:
        each = median(self._seconds[1:] or self._seconds)
        left = self._rounds - len(self._seconds) if self._rounds else None
        until_evaluated = self._evaluated_every - done % self._evaluated_every if self._evaluated_every else None
        takes = f"A round takes about {each:.2g} s here"
        if left is not None and (until_evaluated is None or left < until_evaluated):
            return f"{takes}: its {counted(self._rounds, 'round')} end {in_about(each * left)}."
        if until_evaluated is None:
            return f"{takes}; `starling top` shows what it learns."
        return (
            f"{takes}: after round {done + until_evaluated}, {in_about(each * until_evaluated)}, it measures itself on "
            "questions that it never trains on. `starling top` shows success before and now."
        )


def in_about(seconds: float) -> str:
    """Says when something comes that is expected in so many seconds."""
    if seconds < 45:
        return "in less than a minute"
    if seconds < 5400:
        return f"in about {counted(max(1, round(seconds / 60)), 'minute')}"
    return f"in about {counted(round(seconds / 3600), 'hour')}"
