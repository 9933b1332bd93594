"""Which of a round's groups each engine gets: a pure decision, by what each was measured to do.

The time of an engine for n completions is taken for

    t(n) = s + a + b n,   s: seconds until it has the newest weights, a ≥ 0, b > 0 by least squares over its last rounds

and groups are given out so that all end at about the same time (list scheduling: each next group to the engine that
would end first with it). An engine that was never measured, or only at one size, has a = 0. A donor begins with an
eighth of a round, and gets at most twice the most that it has ever finished in time: what a donor that fails at once
costs is bounded by what it has shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

OBSERVATIONS: Final = 8  # of an engine, the newest
FIRST_SHARE: Final = 8  # a new donor gets one of so many completions
GROWTH: Final = 2.0  # of the most completions that a donor has finished in time
DOUBT: Final = 0.7  # of its time is believed after each round in which a donor that was ready got nothing
SPREAD: Final = 1.3  # sizes closer than this tell nothing about a


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine as the shares see it. None: not measured yet; it is then given its ``most``."""

    most: int | None  # completions; None: any number
    fixed_seconds: float = 0.0
    seconds_a_completion: float | None = None

    def seconds(self, completions: int) -> float:
        return self.fixed_seconds + (self.seconds_a_completion or 0.0) * completions


@dataclass(slots=True)
class Pace:
    """What an engine was measured to do: (completions, seconds) of its last rounds."""

    seen: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=OBSERVATIONS))
    setup_seconds: float = 0.0  # until it had the newest weights, of late

    def observe(self, completions: int, seconds: float, setup_seconds: float = 0.0) -> None:
        if completions > 0:
            self.seen.append((completions, max(seconds, 1e-6)))
            self.setup_seconds = setup_seconds

    def doubt(self) -> None:
        """Multiplies the measured times by ``DOUBT``: an engine that was given no group was not measured again."""
        self.setup_seconds *= DOUBT
        self.seen = deque(((count, seconds * DOUBT) for count, seconds in self.seen), maxlen=OBSERVATIONS)

    def worker(self, most: int | None) -> Worker:
        fitted = fit(self.seen)
        if fitted is None:
            return Worker(most)
        fixed_seconds, each = fitted
        return Worker(most, self.setup_seconds + fixed_seconds, each)


def fit(seen: Sequence[tuple[int, float]] | deque[tuple[int, float]]) -> tuple[float, float] | None:
    """Returns (a, b) of t = a + b n; None without an observation."""
    if not seen:
        return None
    counts = [count for count, _ in seen]
    total_seconds = sum(seconds for _, seconds in seen)
    through_zero = 0.0, total_seconds / sum(counts)
    if max(counts) < SPREAD * min(counts):
        return through_zero
    mean_count, mean_seconds = sum(counts) / len(seen), total_seconds / len(seen)
    spread = sum((count - mean_count) ** 2 for count in counts)
    slope = sum((count - mean_count) * (seconds - mean_seconds) for count, seconds in seen) / spread
    fixed_seconds = mean_seconds - slope * mean_count
    if slope <= 0 or fixed_seconds < 0:
        return through_zero
    return fixed_seconds, slope


def most_after(finished: int, completions: int) -> int:
    """Returns the most completions that a donor may get, which has finished at most ``finished`` in time, in a round of
    so many."""
    if finished == 0:
        return max(1, completions // FIRST_SHARE)
    return max(1, int(GROWTH * finished))


def share_out(work: Sequence[int], workers: Sequence[Worker]) -> list[int]:
    """Returns how many groups each worker gets, of groups that have ``work`` completions to sample.

    The first worker is the learner's own engine: it has no bound, and keeps a group at least.
    """
    groups, completions = [0] * len(workers), [0] * len(workers)
    for index, size in enumerate(work):
        open_to = [
            at
            for at, worker in enumerate(workers)
            if at == 0 or worker.most is None or completions[at] + size <= max(worker.most, size)
        ]
        left_for_own = len(work) - index
        if groups[0] == 0 and left_for_own == 1:
            open_to = [0]
        chosen = min(open_to, key=lambda at: workers[at].seconds(completions[at] + size))
        groups[chosen] += 1
        completions[chosen] += size
    return groups


def expected_seconds(work: Sequence[int], groups: Sequence[int], workers: Sequence[Worker]) -> float:
    """Returns when the last of them should have ended."""
    slowest, begin = 0.0, 0
    for count, worker in zip(groups, workers, strict=True):
        slowest = max(slowest, worker.seconds(sum(work[begin : begin + count])) if count else 0.0)
        begin += count
    return slowest
