"""What a run has learnt and no checkpoint holds, because none can be written: reported for as long as it lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import structs

from node.events import Event, Fault, NotSaved

RETRY_SECONDS: Final = 30.0  # between two attempts to write a checkpoint after one that failed


class UnsavedRounds:
    """Counts the rounds since the newest checkpoint, and when writing one is to be tried again."""

    def __init__(self, saved_round: int, report: Callable[[Event], None], clock: Callable[[], float]) -> None:
        """``saved_round``: of the checkpoint that the run began with, 0 for none."""
        self.saved_round = saved_round
        self.failure: str | None = None  # of the newest attempt; None: it succeeded, or there was none
        self._report, self._clock = report, clock
        self._failed_at_seconds = self._reported_at_seconds = 0.0
        self._ends_at_seconds: float | None = None  # of a run that only waits for room

    @property
    def retry_is_due(self) -> bool:
        return self.failure is not None and self._clock() - self._failed_at_seconds >= RETRY_SECONDS

    def saved(self, round_number: int) -> None:
        self.saved_round, self.failure = round_number, None

    def failed(self, round_number: int, because: str, *, done: int) -> None:
        """The checkpoint of a round was not written; ``done`` rounds are done by now. The first failure in a row is
        reported as a fault too."""
        now_seconds, is_first = self._clock(), self.failure is None
        self.failure, self._failed_at_seconds = because, now_seconds
        if is_first:
            self._report(
                Fault(time_seconds=now_seconds, kind="checkpoint", detail=because, round=round_number, fatal=False)
            )
        if is_first or now_seconds - self._reported_at_seconds >= RETRY_SECONDS:
            self._reported_at_seconds = now_seconds
            self._report(self._state(done, because))

    def ending(self, done: int, waits_seconds: float) -> None:
        """The run is to end after ``done`` rounds, and waits for room before it does."""
        if self.failure is not None:
            self._ends_at_seconds = self._clock() + waits_seconds
            self._report(self._state(done, self.failure))

    def lost(self, done: int) -> NotSaved | None:
        """Returns what is lost if the run ends now, after ``done`` rounds; None where nothing is."""
        if done <= self.saved_round:
            return None
        state = self._state(done, self.failure or "memory ran out while it was to be written")
        return structs.replace(state, ends_in_seconds=None)

    def _state(self, done: int, because: str) -> NotSaved:
        now_seconds, ends = self._clock(), self._ends_at_seconds
        return NotSaved(
            time_seconds=now_seconds,
            round=done,
            saved_round=self.saved_round,
            because=because,
            retry_seconds=RETRY_SECONDS,
            ends_in_seconds=None if ends is None else max(0.0, ends - now_seconds),
        )
