"""What share of a core a new process gets: measured, and as a number of processes that compete."""

from __future__ import annotations

import pytest

from node.demo.forecast import measured_core_shares, others_beside


@pytest.mark.parametrize(
    ("shares", "cores", "others"),
    [
        ([2 / 3] * 3, 2, 0.0),  # three of ours on two cores, and nothing else
        ([0.25] * 4, 2, 4.0),
        ([0.2, 0.3], 1, 2.0),
        ([0.7, 0.7, 0.7], 2, 0.0),  # measured a little too high
    ],
)
def test_shares_say_how_many_others_compete(shares: list[float], cores: int, others: float) -> None:
    assert others_beside(shares, cores) == pytest.approx(others)


def test_processes_that_fill_no_core_are_not_slowed_by_what_is_left() -> None:
    ours, cores = 2, 8
    assert max(1.0, (ours + others_beside([1.0] * ours, cores)) / cores) == 1.0


def test_each_process_measures_its_own_share() -> None:
    shares = measured_core_shares(2)
    assert len(shares) == 2 and all(0.0 < share <= 1.01 for share in shares)
