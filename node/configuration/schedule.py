"""The hours in which a node may train: "22:00-07:00", "Mon-Fri 18:00-08:00, Sat, Sun". Pure functions of text and time.

    schedule = entry {"," entry}
    entry    = days [range] | range
    days     = day ["-" day]           Mon … Sun; a range of days may cross Sunday
    range    = "HH:MM-HH:MM"           local time; one that crosses midnight ends on the day after; 24:00 is allowed

Days name the day on which a range begins; an entry without a range is the whole day. Where clocks are set, a range
begins and ends by the wall clock: a time that exists twice means the first, one that is left out the moment that would
have been it, had the clocks not been set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Final

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES_OF_DAY: Final = 24 * 60
DAYS_AHEAD: Final = 9  # a week, and the days around it whose ranges may touch it
_RANGE: Final = re.compile(r"(\d{1,2}):(\d{2})\s*[-–]\s*(\d{1,2}):(\d{2})")
_ENTRY: Final = re.compile(
    rf"(?:(?P<first>{'|'.join(DAYS)})[a-z]*(?:\s*[-–]\s*(?P<last>{'|'.join(DAYS)})[a-z]*)?)?"
    rf"\s*(?P<range>{_RANGE.pattern})?"
)


@dataclass(frozen=True, slots=True)
class Hours:
    """One entry: the days on which it begins, and minutes since midnight; an end at or before the begin is the next
    day's."""

    days: frozenset[int]  # 0: Monday
    begin_minutes: int
    end_minutes: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """``text`` is as the owner wrote it. Without hours it never excludes anything."""

    text: str = ""
    hours: tuple[Hours, ...] = ()

    def at(self, now_seconds: float, zone: tzinfo | None = None) -> tuple[bool, float | None]:
        """Returns whether ``now_seconds``, Unix time, is within the schedule, and when that changes; None if never.

        ``zone`` is that of the wall clock; None is this machine's.
        """
        if not self.hours:
            return True, None
        stretches = _merged(self._stretches(datetime.fromtimestamp(now_seconds, zone).date(), zone))
        for begin_seconds, end_seconds in stretches:
            if now_seconds < begin_seconds:
                return False, begin_seconds
            if now_seconds < end_seconds:
                return True, None if len(stretches) == 1 else end_seconds  # one that covers every day never ends
        return False, None

    def _stretches(self, today: date, zone: tzinfo | None) -> Iterator[tuple[float, float]]:
        for ahead in range(-2, DAYS_AHEAD):
            day = today + timedelta(days=ahead)
            for hours in self.hours:
                if day.weekday() in hours.days:
                    crosses = hours.end_minutes <= hours.begin_minutes
                    end_day = day + timedelta(days=1) if crosses else day
                    yield _unix(day, hours.begin_minutes, zone), _unix(end_day, hours.end_minutes, zone)


def parse_schedule(text: str) -> Schedule:
    """Raises ``ValueError`` that quotes the entry and gives an example."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    return Schedule(text.strip(), tuple(map(_hours, entries)))


def _hours(entry: str) -> Hours:
    found = _ENTRY.fullmatch(entry.lower())
    example = 'write "22:00-07:00" or "Mon-Fri 18:00-08:00, Sat, Sun"'
    if found is None:
        raise ValueError(f"{entry!r} is no time range: {example}")
    days = frozenset(range(7))
    if found["first"]:
        first = DAYS.index(found["first"])
        last = DAYS.index(found["last"]) if found["last"] else first
        days = frozenset((first + step) % 7 for step in range((last - first) % 7 + 1))
    if not found["range"]:
        return Hours(days, 0, MINUTES_OF_DAY)
    digits = _RANGE.fullmatch(found["range"])
    assert digits is not None
    hour, minute, end_hour, end_minute = map(int, digits.groups())
    begin_minutes, end_minutes = 60 * hour + minute, 60 * end_hour + end_minute
    if minute > 59 or end_minute > 59 or begin_minutes >= MINUTES_OF_DAY or end_minutes > MINUTES_OF_DAY:
        raise ValueError(f"{entry!r} names a time that no clock shows: {example}")
    if begin_minutes == end_minutes:
        raise ValueError(f"{entry!r} begins when it ends: for a whole day write its name alone, such as Sat")
    return Hours(days, begin_minutes, end_minutes)


def _unix(day: date, minutes: int, zone: tzinfo | None) -> float:
    next_days, minutes = divmod(minutes, MINUTES_OF_DAY)
    wall = datetime.combine(day + timedelta(days=next_days), time(minutes // 60, minutes % 60), tzinfo=zone)
    return wall.timestamp()


def _merged(stretches: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the stretches in order, with those that touch joined."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(stretches):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif begin < end:
            merged.append((begin, end))
    return merged
