"""Time series in bounded memory: neighbouring samples are merged, each counted once, order kept.

    merged(b₁ … bₙ):  mean of a value = Σ mean·count / Σ count over those that have it;  last and most likewise
    a track holds its newest samples one by one, and all of them in stretches of equally many, 2^k each;
    k grows by one when the stretches become too many, so that a run of any length fits

Functions are pure; a ``Track`` is the one thing with state. Nothing reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

RECENT = 500  # samples kept one by one
STRETCHES = 1000  # at most; halved when reached

Kind = Literal["mean", "last", "most"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive samples as one: of each value its aggregate, and how many samples had it."""

    began_seconds: float
    ended_seconds: float
    values: Mapping[str, tuple[float, int]]


def sample(time_seconds: float, values: Mapping[str, float]) -> Stretch:
    """One sample, of those values that it has."""
    return Stretch(time_seconds, time_seconds, {name: (value, 1) for name, value in values.items()})


def merged(stretches: Sequence[Stretch], kinds: Mapping[str, Kind]) -> Stretch:
    """One stretch of several, at least one. A value of a name not in ``kinds`` is a mean."""
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
    """At most ``points`` (one or more), each of as many neighbours as the others, or one more."""
    if len(stretches) <= points:
        return list(stretches)
    borders = [len(stretches) * index // points for index in range(points + 1)]
    return [merged(stretches[a:b], kinds) for a, b in pairwise(borders)]


@dataclass(slots=True)
class Track:
    """All samples of one kind of event, in bounded memory."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    recent: deque[Stretch] = field(default_factory=lambda: deque(maxlen=RECENT))
    _stretches: list[Stretch] = field(default_factory=list)
    _open: list[Stretch] = field(default_factory=list)  # samples that do not make up a stretch yet
    _width: int = 1  # samples a stretch

    def add(self, new: Stretch) -> None:
        self.recent.append(new)
        self._open.append(new)
        if len(self._open) < self._width:
            return
        self._stretches.append(merged(self._open, self.kinds))
        self._open.clear()
        if len(self._stretches) >= STRETCHES:
            whole = self._stretches
            self._stretches = [merged(whole[at : at + 2], self.kinds) for at in range(0, len(whole), 2)]
            self._width *= 2

    def since(self, began_seconds: float) -> list[Stretch]:
        """What ended at that time or later: sample by sample where those are kept, else by stretches."""
        if self._width == 1 or (self.recent and self.recent[0].ended_seconds <= began_seconds):
            kept: Sequence[Stretch] = [*self._stretches, *self._open] if self._width == 1 else self.recent
        else:
            kept = [*self._stretches, *([merged(self._open, self.kinds)] if self._open else [])]
        return [stretch for stretch in kept if stretch.ended_seconds >= began_seconds]
