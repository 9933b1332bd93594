"""Whose clock is wrong: several peers that agree say it of ours, one peer says only that two clocks differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.supervision.watching.clock_watch import ClockWatch, judge_offsets


@pytest.mark.parametrize("offsets", [[], [0.0], [29.0, -29.0], [90.0, 0.1], [90.0, 0.1, 0.2], [400.0, 0.0, 0.0, 400.0]])
def test_clock_that_enough_peers_share_is_right_and_others_are_not_our_fault(offsets: list[float]) -> None:
    assert judge_offsets(offsets) is None


@pytest.mark.parametrize("offsets", [[90.0], [90.0, 95.0], [-90.0, 3600.0]])
def test_one_or_two_peers_that_differ_blame_nobody(offsets: list[float]) -> None:
    verdict = judge_offsets(offsets)
    assert verdict is not None and not verdict.ours and "one of them is wrong" in verdict.message
    assert "timedatectl" in verdict.remedy


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ([75.0, 76.0, 74.0], "75 s behind those of 3 of 3"),
        ([-75.0, -76.0, -74.0, 0.0], "74 s ahead of those of 3 of 4"),
        ([3600.0] * 5, "60 minutes behind"),
        ([-86_400.0] * 3, "24.0 hours ahead of"),
    ],
)
def test_three_peers_that_agree_with_each_other_and_not_with_us_say_that_ours_is_wrong(
    offsets: list[float], told: str
) -> None:
    verdict = judge_offsets(offsets)
    assert verdict is not None and verdict.ours and told in verdict.message
    assert ("refuse" in verdict.message) == (abs(offsets[0]) > 300)


@given(st.lists(st.floats(-1e5, 1e5), max_size=2), st.lists(st.floats(-30, 30), min_size=2, max_size=9))
def test_no_two_liars_make_our_clock_wrong_among_as_many_that_agree_with_it(
    liars: list[float], others: list[float]
) -> None:
    assert judge_offsets([*liars, *others]) is None


def test_verdict_is_told_once_it_has_lasted_and_once_it_is_over() -> None:
    watch = ClockWatch()
    wrong, right = [75.0, 76.0, 74.0], [0.0, 0.1, 0.2]
    assert [watch.look(offsets) for offsets in (wrong, wrong, right, wrong, wrong, wrong, wrong)] == [False] * 5 + [
        True,
        False,
    ]
    assert watch.told is not None and watch.told.ours
    assert [watch.look(offsets) for offsets in (right, right, right, right)] == [False, False, True, False]
    assert watch.told is None
