"""The hours in which a node may train: across midnight, across weeks, and where clocks are set."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from node.configuration.schedule import parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")
UTC = timezone.utc  # noqa: UP017


def unix(text: str, zone: tzinfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def at(schedule: str, text: str, zone: tzinfo = BERLIN, fold: int = 0) -> tuple[bool, str | None]:
    """Whether a local time is within the schedule, and the local time at which that changes."""
    within, changes = parse_schedule(schedule).at(unix(text, zone, fold), zone)
    return within, None if changes is None else f"{datetime.fromtimestamp(changes, zone):%a %H:%M}"


@pytest.mark.parametrize("text", ["", "  ", "Mon-Sun"])
def test_a_schedule_that_excludes_nothing_never_changes(text: str) -> None:
    assert parse_schedule(text).at(unix("2026-11-23T12:00"), BERLIN) == (True, None)


@pytest.mark.parametrize(
    ("now", "within", "changes"),
    [
        ("2026-11-23T21:59", False, "Mon 22:00"),
        ("2026-11-23T22:00", True, "Tue 07:00"),
        ("2026-11-23T23:59:59", True, "Tue 07:00"),
        ("2026-11-24T00:00", True, "Tue 07:00"),
        ("2026-11-24T06:59:59", True, "Tue 07:00"),
        ("2026-11-24T07:00", False, "Tue 22:00"),
    ],
)
def test_a_range_across_midnight_ends_on_the_day_after(now: str, within: bool, changes: str) -> None:
    assert at("22:00-07:00", now) == (within, changes)


@pytest.mark.parametrize(
    ("now", "within", "changes"),
    [
        ("2026-11-27T19:00", True, "Mon 00:00"),  # Friday's evening, then the whole weekend
        ("2026-11-30T00:00", False, "Mon 18:00"),
        ("2026-11-30T07:00", False, "Mon 18:00"),  # Sunday has no night of its own
        ("2026-12-01T07:59", True, "Tue 08:00"),
        ("2026-12-01T08:00", False, "Tue 18:00"),
    ],
)
def test_days_name_the_day_on_which_a_range_begins(now: str, within: bool, changes: str) -> None:
    assert at("Mon-Fri 18:00-08:00, Sat, Sun", now) == (within, changes)


def test_a_range_of_days_may_cross_sunday() -> None:
    assert at("Sat-Mon", "2026-11-27T12:00") == (False, "Sat 00:00")
    assert at("Sat-Mon", "2026-11-29T12:00") == (True, "Tue 00:00")


def test_ranges_that_touch_are_one() -> None:
    assert at("08:00-12:00, 12:00-14:00, 13:00-15:00", "2026-11-23T09:00") == (True, "Mon 15:00")


def test_a_day_a_week_that_is_over_is_found_again_in_six_days() -> None:
    assert at("Mon 10:00-11:00", "2026-11-23T11:00") == (False, "Mon 10:00")


def test_the_end_of_a_day_may_be_written_as_24() -> None:
    assert at("20:00-24:00", "2026-11-23T23:59") == (True, "Tue 00:00")


def test_a_night_in_which_clocks_are_set_forward_is_an_hour_shorter() -> None:
    schedule = parse_schedule("22:00-07:00")
    within, ends = schedule.at(unix("2026-03-28T22:00"), BERLIN)
    assert within and ends is not None and ends - unix("2026-03-28T22:00") == 8 * 3600


def test_a_night_in_which_clocks_are_set_back_is_an_hour_longer() -> None:
    schedule = parse_schedule("22:00-07:00")
    within, ends = schedule.at(unix("2026-10-24T22:00"), BERLIN)
    assert within and ends is not None and ends - unix("2026-10-24T22:00") == 10 * 3600


def test_a_time_that_no_clock_shows_that_night_is_the_moment_that_would_have_been_it() -> None:
    assert at("02:30-04:00", "2026-03-29T01:59") == (False, "Sun 03:30")


def test_a_time_that_clocks_show_twice_means_the_first() -> None:
    assert at("02:15-02:45", "2026-10-25T02:30", fold=0) == (True, "Sun 02:45")
    assert at("02:15-02:45", "2026-10-25T02:30", fold=1) == (False, "Mon 02:15")


def test_every_minute_of_a_week_agrees_with_the_wall_clock() -> None:
    schedule = parse_schedule("Mon-Fri 22:00-07:00, Sat 09:00-12:30")
    begin = datetime(2026, 11, 23, tzinfo=UTC)
    for minute in range(0, 7 * 24 * 60, 7):
        now = begin + timedelta(minutes=minute)
        day, clock = now.weekday(), now.hour * 60 + now.minute
        expected = (day < 5 and clock >= 22 * 60) or (1 <= day <= 5 and clock < 7 * 60)
        expected |= day == 5 and 9 * 60 <= clock < 12 * 60 + 30
        within, changes = schedule.at(now.timestamp(), UTC)
        assert within == expected, now
        assert changes is not None and changes > now.timestamp()
        assert schedule.at(changes, UTC)[0] != within and schedule.at(changes - 1, UTC)[0] == within


@pytest.mark.parametrize(
    "text",
    ["22-7", "22:00", "25:00-07:00", "22:00-24:30", "22:61-07:00", "07:00-07:00", "Foo 22:00-07:00", "24:00-07:00"],
)
def test_what_is_no_time_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|begins when it ends"):
        parse_schedule(text)
