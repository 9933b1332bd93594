"""Charts, and what happened when."""

from __future__ import annotations

from msgspec import Struct


class Mark(Struct, frozen=True):
    """Something that happened at one time of a chart. Neighbours of one kind are merged where they are many."""

    time_seconds: float  # of the first
    until_seconds: float  # of the last; the same where there is one
    round: int  # rounds done at the last
    kind: str  # a key of ``marks.KINDS``
    text: str  # in words, with names of peers escaped
    count: int  # how many were merged into it


class Series(Struct, frozen=True):
    """One line of a chart."""

    name: str
    unit: str
    task: str | None  # of a series that exists once for each task
    values: tuple[float | None, ...]  # one for each time of its timeline; None where no value was recorded


class Timeline(Struct, frozen=True):
    """Series over the same times. Each time is the end of a stretch; all stretches have equally many samples."""

    time_seconds: tuple[float, ...]
    series: tuple[Series, ...]


class HistoryAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/history: at most ``points`` a series, oldest first."""

    rounds: Timeline  # of the learner, a sample a round
    usage: Timeline  # of machine and network
    restored: bool  # whether it includes already what was recorded before this start
    evaluations: Timeline = Timeline((), ())  # a sample an evaluation: the mean reward on held-out prompts, and by task
    marks: tuple[Mark, ...] = ()  # oldest first, of the same time; at most ``marks.MAX_MARKS``
