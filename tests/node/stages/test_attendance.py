"""When an owner goes on without a machine that is away, and when it takes in one that has come."""

from __future__ import annotations

import pytest

from node.stages.attendance import Attendance, Away, may_go_without, may_take_in


@pytest.mark.parametrize(
    ("missing_since", "may"), [([], True), ([380.0], True), ([381.0], False), ([0.0, 381.0], False), ([0.0, 1.0], True)]
)
def test_nobody_is_waited_for_once_all_that_are_missing_have_been_away_for_long(
    missing_since: list[float], may: bool
) -> None:
    assert may_go_without(500.0, missing_since, 120.0) is may


@pytest.mark.parametrize(
    ("now_seconds", "used", "may"), [(699.0, 1, False), (700.0, 1, True), (700.0, 2, False), (9000.0, 0, True)]
)
def test_a_machine_is_taken_in_where_one_is_missing_and_not_too_soon(now_seconds: float, used: int, may: bool) -> None:
    assert may_take_in(now_seconds, 100.0, used, 2, 600.0) is may


def test_the_first_start_waits_for_every_machine_however_long_it_takes() -> None:
    attendance = Attendance()
    attendance.starts(0.0, goes_on=False)
    assert not attendance.may_go_without(1e9, 1)
    assert not attendance.may_take_in(1e9, 1, 2)


def test_a_start_from_a_checkpoint_gives_machines_that_it_never_saw_time_to_come() -> None:
    attendance = Attendance(away_seconds=120.0)
    attendance.starts(1000.0, goes_on=True)
    assert not attendance.may_go_without(1119.0, 1)
    assert attendance.may_go_without(1120.0, 1)


def test_of_machines_that_are_away_those_that_went_last_are_missing() -> None:
    attendance = Attendance(away_seconds=120.0)
    attendance.starts(0.0, goes_on=True)
    for peer, since in (("ann", 900.0), ("bob", 10.0), ("cid", 500.0)):
        attendance.lost(Away(peer, "", since, "cut off"))
    assert [each.peer for each in attendance.newest_away(2)] == ["cid", "ann"]
    assert not attendance.may_go_without(1000.0, 1)
    attendance.found("ann")
    assert [each.peer for each in attendance.newest_away(9)] == ["bob", "cid"]
    assert attendance.newest_away(0) == [] and attendance.may_go_without(1000.0, 1)
