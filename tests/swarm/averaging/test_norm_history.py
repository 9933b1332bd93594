"""The rule for outliers: which norms are refused or shortened; it cannot be worn down, and does not last for ever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.averaging.norm_history import AHEAD, FAR, MAX_Z, REMEMBERED, WARM_UP, FamilyPast, NormHistory

LENGTHS = st.floats(1e-6, 1e6)


def steady(mean: float = 10.0, seen: int = 40) -> FamilyPast:
    past = FamilyPast()
    for index in range(seen):
        past = past.after_averaging("ann", mean * (1.0 + 0.05 * (-1) ** index))
    return past


def test_what_is_as_far_as_usual_counts_in_full_and_what_is_farther_for_as_much_as_usual() -> None:
    past = steady()
    assert past.weight(10.0, 1.0) == past.weight(0.1, 1.0) == 1.0
    longest = past.norms.median + past.norms.deviation
    for norm in (13.5, 17.0, 27.0):
        assert past.outlier_because(norm, 100.0) is None
        assert past.weight(norm, 1.0) * norm == pytest.approx(longest)


def test_more_than_seven_deviations_are_refused_in_words_that_give_the_numbers() -> None:
    because = steady().outlier_because(40.0, 100.0)
    assert because is not None
    assert {"40,", "12"} <= set(because.split())


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_no_number_is_refused_from_the_first(norm: float) -> None:
    assert FamilyPast().outlier_because(norm, 1.0) is not None
    assert steady().outlier_because(norm, 1.0) is not None


def test_before_enough_was_seen_our_own_length_is_the_measure() -> None:
    past = steady(seen=WARM_UP - 1)
    assert past.outlier_because(FAR * 3.0, 3.0) is None
    assert past.outlier_because(FAR * 3.0 + 0.1, 3.0) is not None
    assert FamilyPast().outlier_because(5.0, 0.0) is None  # ours are all zero: no measure


@given(LENGTHS, LENGTHS)
def test_before_distances_are_known_nobody_moves_us_further_than_we_learnt(norm: float, learnt: float) -> None:
    past = steady(seen=WARM_UP - 1)
    assert past.weight(norm, learnt) * norm <= AHEAD * learnt * (1.0 + 1e-9)
    assert past.weight(min(norm, AHEAD * learnt), learnt) == 1.0
    assert past.weight(norm, 0.0) == 0.0


def test_equal_weights_say_nothing_of_how_far_replicas_lie_apart() -> None:
    past = FamilyPast()
    for _ in range(2 * WARM_UP):
        past = past.after_averaging("ann", 0.0)
    assert past.outlier_because(1.0, 1.0) is None


@given(LENGTHS, LENGTHS, LENGTHS)
def test_a_family_that_drifted_apart_is_refused_a_few_times_and_not_for_ever(
    mean: float, norm: float, own: float
) -> None:
    past, refusals = steady(mean), 0
    for _ in range(REMEMBERED):  # until the history has followed
        while past.outlier_because(norm, own) is not None:
            past, refusals = past.after_refusal(), refusals + 1
            assert refusals < 64 + REMEMBERED
        past = past.after_averaging("ann", norm)
    assert past.norms.median == norm and past.outlier_because(norm, own) is None


def test_beside_honest_partners_refusals_do_not_raise_the_bar() -> None:
    past = steady()
    for index in range(100):
        assert past.outlier_because(40.0, 100.0) is not None
        past = past.after_refusal().after_averaging("ann", 10.0 * (1.0 + 0.05 * (-1) ** index))
    assert past.norms.median == pytest.approx(10.0, rel=0.05)


@given(st.lists(LENGTHS, max_size=60), LENGTHS)
def test_nobody_moves_us_by_more_than_a_deviation_above_the_median(norms: list[float], norm: float) -> None:
    past = FamilyPast()
    for each in norms:
        past = past.after_averaging("ann", each)
    weight = past.weight(norm, 1.0)
    assert 0.0 < weight <= 1.0
    if past.norms.is_enough:
        assert weight * norm <= (past.norms.median + past.norms.deviation) * (1.0 + 1e-9)


@given(st.floats(4.0, 1e6), st.integers(0, 6), st.integers(3, 7))
def test_outliers_that_were_there_from_the_first_are_refused_as_long_as_they_are_the_fewer(
    longer: float, first: int, every: int
) -> None:
    past, accepted = FamilyPast(), 0
    for index in range(20 * every):
        norm = longer * 10.0 if index % every == first % every else 10.0 * (1.0 + 0.05 * (-1) ** index)
        if past.outlier_because(norm, 1e9) is None:
            partner = "eve" if norm == longer * 10.0 else f"peer {index % every}"
            past, accepted = past.after_averaging(partner, norm), accepted + (norm == longer * 10.0)
        else:
            past = past.after_refusal()
    assert accepted <= 3, "those of the warm-up alone"


def test_one_partner_does_not_say_what_is_usual_however_often_it_came_first() -> None:
    past = FamilyPast()
    for partner, norm in [*[("eve", 1000.0)] * (WARM_UP - 1), ("ann", 10.0)]:
        past = past.after_averaging(partner, norm)
    assert past.outlier_because(1000.0, 1e9) is not None
    assert past.outlier_because(12.0, 1e9) is None and past.weight(12.0, 1.0) == 1.0
    assert past.weight(20.0, 1.0) * 20.0 == pytest.approx(12.5)


def test_norms_of_a_checkpoint_that_names_no_partners_are_those_of_one() -> None:
    history = NormHistory((10.0,) * 9).with_norm("ann", 12.0)
    assert (history.norms[-1], history.partners) == (12.0, ("",) * 9 + ("ann",))
    assert history.median == 10.0 and history.is_enough
    for number in range(REMEMBERED):
        history = history.with_norm(f"peer {number}", 20.0)
    assert history.median == 20.0 and len(history.norms) == len(history.partners) == REMEMBERED


def test_a_past_without_a_norm_has_no_median() -> None:
    assert (NormHistory().median, NormHistory().is_enough) == (0.0, False)


def test_a_past_without_spread_takes_a_quarter_of_its_median_for_a_deviation() -> None:
    history = NormHistory()
    for _ in range(WARM_UP):
        history = history.with_norm("ann", 5.0)
    assert history.score(5.0 + MAX_Z * 1.25) == pytest.approx(MAX_Z)
