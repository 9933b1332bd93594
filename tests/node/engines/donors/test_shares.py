"""Who gets how many groups, as a pure decision."""

from __future__ import annotations

import pytest

from node.engines.donors.shares import Pace, Worker, expected_seconds, fit, most_after, share_out

GROUPS = [4] * 32


def test_engines_of_unlike_speed_end_at_about_the_same_time() -> None:
    workers = [Worker(None, 0.0, 0.1), Worker(128, 0.0, 0.05), Worker(128, 0.0, 0.4)]
    groups = share_out(GROUPS, workers)
    assert sum(groups) == 32
    ends = [worker.seconds(4 * count) for worker, count in zip(workers, groups, strict=True)]
    assert max(ends) - min(ends) <= 1.6 + 1e-9  # one group of the slowest
    assert groups[1] > groups[0] > groups[2] > 0
    assert expected_seconds(GROUPS, groups, workers) == max(ends) < 0.1 * 128 / 2


def test_a_donor_that_needs_long_for_the_weights_gets_what_it_still_can_finish() -> None:
    own = Worker(None, 0.0, 0.1)
    soon, late, too_late = (Worker(128, seconds, 0.1) for seconds in (1.0, 6.0, 60.0))
    assert [share_out(GROUPS, [own, each])[1] for each in (soon, late, too_late)] == [15, 9, 0]


def test_a_new_donor_gets_an_eighth_and_then_twice_what_it_finished() -> None:
    assert most_after(0, 128) == 16
    assert share_out(GROUPS, [Worker(None, 0.0, 0.1), Worker(most_after(0, 128))]) == [28, 4]
    assert [most_after(finished, 128) for finished in (1, 16, 32)] == [2, 32, 64]
    assert most_after(0, 4) == 1


def test_a_group_larger_than_a_donors_bound_may_be_given_to_it_alone() -> None:
    assert share_out([8, 8, 8], [Worker(None, 0.0, 1.0), Worker(1)]) == [2, 1]


def test_the_own_engine_keeps_a_group_however_slow_it_is() -> None:
    assert share_out(GROUPS, [Worker(None, 100.0, 10.0), Worker(500, 0.0, 0.001)]) == [1, 31]
    assert share_out([4], [Worker(None, 100.0, 10.0), Worker(500, 0.0, 0.001)]) == [1, 0]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([], None),
        ([(100, 5.0)], (0.0, 0.05)),
        ([(100, 5.0), (110, 5.2)], (0.0, 10.2 / 210)),  # too near to each other to tell a
        ([(100, 6.0), (20, 2.0)], (1.0, 0.05)),
        ([(100, 2.0), (20, 3.0)], (0.0, 5.0 / 120)),  # less work took longer: noise
    ],
)
def test_the_time_of_an_engine_is_fitted_to_what_was_seen(
    seen: list[tuple[int, float]], expected: tuple[float, float] | None
) -> None:
    assert fit(seen) == (None if expected is None else pytest.approx(expected))


def test_a_pace_forgets_and_counts_the_time_until_the_weights_were_there() -> None:
    pace = Pace()
    assert pace.worker(7) == Worker(7)
    for _ in range(20):
        pace.observe(10, 2.0)
    for _ in range(8):
        pace.observe(10, 1.0, setup_seconds=0.5)
    worker = pace.worker(7)
    assert (worker.most, worker.fixed_seconds) == (7, 0.5)
    assert worker.seconds_a_completion == pytest.approx(0.1)


def test_a_donor_that_got_nothing_is_doubted_less_each_time_until_it_is_tried_again() -> None:
    pace, own = Pace(), Worker(None, 0.0, 0.1)
    pace.observe(10, 300.0, setup_seconds=50.0)
    rounds = 0
    while share_out(GROUPS, [own, pace.worker(128)])[1] == 0:
        pace.doubt()
        rounds += 1
    assert 3 <= rounds <= 12
