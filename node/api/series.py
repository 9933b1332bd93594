"""Time series in bounded memory: neighbouring samples are merged, each counted once, order kept.

    merge(b₁ … bₙ):  mean of a value = Σ mean·count / Σ count over those that have it;  last and max likewise
    a track holds its newest samples one by one, and all samples in stretches of 2^k samples each;
    k grows by one when the stretches become too many, so that a run of any length fits

Functions are pure; only a ``Track`` has state. Nothing reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

MAX_RECENT_SAMPLES = 500  # kept one by one
MAX_STRETCHES = 1000  # merged two by two when reached

Kind = Literal["mean", "last", "max"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive samples as one: for each value its aggregate, and how many samples had it."""

    began_seconds: float
    ended_seconds: float
    values: Mapping[str, tuple[float, int]]


def sample(time_seconds: float, values: Mapping[str, float]) -> Stretch:
    """Returns a stretch of one sample."""
    return Stretch(time_seconds, time_seconds, {name: (value, 1) for name, value in values.items()})


def merge(stretches: Sequence[Stretch], kinds: Mapping[str, Kind]) -> Stretch:
    """Returns one stretch of one or more. A value whose name is not in ``kinds`` is a mean."""
    if len(stretches) == 1:
        return stretches[0]
    values: dict[str, tuple[float, int]] = {}
    for stretch in stretches:
        for name, (value, count) in stretch.values.items():
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
    return Stretch(stretches[0].began_seconds, stretches[-1].ended_seconds, values)


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

    def add(self, new: Stretch) -> None:
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
