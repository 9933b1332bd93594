"""What is remembered of a donor over its sessions, and what follows from how each of its parts ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from node.engines.donors.logp_checks import CheckedSoFar
from node.engines.donors.shares import Pace, Worker, most_after

RESTS_AFTER: Final = 3  # losses in a row
FIRST_REST_SECONDS: Final = 60.0
LONGEST_REST_SECONDS: Final = 3600.0


@dataclass(slots=True)
class DonorPast:
    pace: Pace = field(default_factory=Pace)
    finished: int = 0  # the most completions that it finished in time of late
    losses_in_a_row: int = 0
    rests_until_seconds: float = 0.0
    checked: CheckedSoFar = field(default_factory=CheckedSoFar)
    dropped: bool = False
    tokens: int = 0  # used, since this process started

    def worker(self, completions: int) -> Worker:
        """Returns the donor as the shares of a round of so many completions see it."""
        return self.pace.worker(most_after(self.finished, completions))

    def may_come(self, now: float) -> bool:
        return not self.dropped and now >= self.rests_until_seconds

    def ended(self, completions: int, *, late: bool, seconds: float, setup_seconds: float) -> None:
        """Takes note of a part that was used, in which so many completions ended; ``late``: others had not."""
        self.losses_in_a_row = 0
        self.pace.observe(max(completions, 1 if late else 0), seconds, setup_seconds)
        self.finished = max(1, completions) if late else max(self.finished, completions)

    def came_to_nothing(self) -> None:
        """Takes note of a part that was lost."""
        self.finished //= 2

    def lost(self, now: float) -> None:
        """Takes note of the end of a session."""
        self.losses_in_a_row += 1
        if self.losses_in_a_row >= RESTS_AFTER:
            rest_seconds = FIRST_REST_SECONDS * 2 ** min(self.losses_in_a_row - RESTS_AFTER, 10)
            self.rests_until_seconds = now + min(rest_seconds, LONGEST_REST_SECONDS)
