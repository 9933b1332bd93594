"""Time series in bounded memory: neighbouring samples are merged, each counted once, order kept.

    merge(b₁ … bₙ):  mean of a value = Σ mean·count / Σ count over those that have it;  last and max likewise
    a track holds its newest samples one by one, and all samples in stretches of 2^k samples each;
    k grows by one when the stretches become too many, so that a run of any length fits
    a value takes 16 bytes, and its name none as long as samples have the same names
    a gap: more than max(GAP_SECONDS, GAP_FACTOR * the usual time between samples) from one sample's end to the next
    one's beginning

Functions are pure; only a ``Track`` has state. Nothing reads a clock.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal

MAX_RECENT_SAMPLES = 500  # kept one by one
MAX_STRETCHES = 1000  # merged two by two when reached

GAP_SECONDS: Final = 20.0
GAP_FACTOR: Final = 4.0
MAX_GAPS: Final = 64  # of a track; the shortest one makes room
SHARED_NAMES: Final = 64  # sets of names that later samples share

Kind = Literal["mean", "last", "max"]


class Values:
    """By name a value and how many samples had it, without an object for each."""

    __slots__ = ("_counts", "_values", "names")

    def __init__(self, values: Mapping[str, tuple[float, int]]) -> None:
        self.names = _shared(tuple(sorted(values)))
        self._values = array("d", (values[name][0] for name in self.names))
        self._counts = array("L", (values[name][1] for name in self.names))

    def of(self, name: str) -> float | None:
        at = bisect_left(self.names, name)
        return self._values[at] if at < len(self.names) and self.names[at] == name else None

    def entries(self) -> Iterator[tuple[str, float, int]]:
        return zip(self.names, self._values, self._counts, strict=True)


@lru_cache(SHARED_NAMES)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(sys.intern, names))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive samples as one: for each value its aggregate, and how many samples had it."""

    began_seconds: float
    ended_seconds: float
    values: Values


def sample(time_seconds: float, values: Mapping[str, float], *, took_seconds: float = 0.0) -> Stretch:
    """Returns a stretch of one sample, which took so long and ended at that time."""
    return Stretch(
        time_seconds - took_seconds, time_seconds, Values({name: (value, 1) for name, value in values.items()})
    )


def merge(stretches: Sequence[Stretch], kinds: Mapping[str, Kind]) -> Stretch:
    """Returns one stretch of one or more. A value whose name is not in ``kinds`` is a mean."""
    if len(stretches) == 1:
        return stretches[0]
    values: dict[str, tuple[float, int]] = {}
    for stretch in stretches:
        for name, value, count in stretch.values.entries():
            before = values.get(name)
            if before is None:
                values[name] = value, count
                continue
            kind, total = kinds.get(name, "mean"), before[1] + count
            if kind == "mean":
                # This order cannot overflow where the two values themselves do not.
                values[name] = before[0] + (value - before[0]) * (count / total), total
            else:
                values[name] = value if kind == "last" else max(before[0], value), total
    return Stretch(stretches[0].began_seconds, stretches[-1].ended_seconds, Values(values))


def downsampled(stretches: Sequence[Stretch], points: int, kinds: Mapping[str, Kind]) -> list[Stretch]:
    """Returns at most ``points`` stretches (one or more), each merged from equally many neighbours, or one more."""
    if len(stretches) <= points:
        return list(stretches)
    borders = [len(stretches) * index // points for index in range(points + 1)]
    return [merge(stretches[a:b], kinds) for a, b in pairwise(borders)]


@dataclass(slots=True)
class Track:
    """All samples of one kind of event, in bounded memory."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    recent: deque[Stretch] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_SAMPLES))
    _stretches: list[Stretch] = field(default_factory=list)
    _open: list[Stretch] = field(default_factory=list)  # samples that do not fill a stretch yet
    _width: int = 1  # samples in a stretch
    _gaps: list[tuple[float, float]] = field(default_factory=list)
    _busy_until_seconds: float | None = None
    _usual_seconds: float = 0.0  # between the ends of two samples: a running mean

    def busy_until(self, time_seconds: float) -> None:
        """Notes that something else was done until then, so that this time is no gap."""
        if self._busy_until_seconds is not None:
            self._busy_until_seconds = max(self._busy_until_seconds, time_seconds)

    def gaps(self, began_seconds: float = float("-inf")) -> tuple[tuple[float, float], ...]:
        """Returns the stretches of time without samples that ended then or later, oldest first."""
        return tuple(gap for gap in self._gaps if gap[1] >= began_seconds)

    def _note_gap(self, new: Stretch) -> None:
        before, self._busy_until_seconds = self._busy_until_seconds, new.ended_seconds
        if before is None:
            return
        if new.began_seconds - before > max(GAP_SECONDS, GAP_FACTOR * self._usual_seconds):
            self._gaps.append((before, new.began_seconds))
            if len(self._gaps) > MAX_GAPS:
                self._gaps.remove(min(self._gaps, key=lambda gap: gap[1] - gap[0]))
        else:
            self._usual_seconds += (max(0.0, new.ended_seconds - before) - self._usual_seconds) / GAP_FACTOR

    def add(self, new: Stretch) -> None:
        self._note_gap(new)
        self.recent.append(new)
        self._open.append(new)
        if len(self._open) < self._width:
            return
        self._stretches.append(merge(self._open, self.kinds))
        self._open.clear()
        if len(self._stretches) >= MAX_STRETCHES:
            whole = self._stretches
            self._stretches = [merge(whole[at : at + 2], self.kinds) for at in range(0, len(whole), 2)]
            self._width *= 2

    def since(self, began_seconds: float) -> list[Stretch]:
        """Returns what ended at that time or later: sample by sample where those are kept, otherwise in stretches."""
        if self._width == 1 or (self.recent and self.recent[0].ended_seconds <= began_seconds):
            kept: Sequence[Stretch] = [*self._stretches, *self._open] if self._width == 1 else self.recent
        else:
            kept = [*self._stretches, *([merge(self._open, self.kinds)] if self._open else [])]
        return [stretch for stretch in kept if stretch.ended_seconds >= began_seconds]
