"""The learning rate that a node finds: towards steps that move the policy far enough, within its bounds."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.learner.steps.rate_control import (
    DOWN,
    FIRST_LONGER,
    FIRST_MEASURED,
    LEAST_FACTOR,
    MEASURED_EVERY,
    MOST_FACTOR,
    MOST_MOVED,
    MOST_OF_LARGE,
    SETTLED,
    SETTLED_EVERY,
    TARGET,
    UP,
    RateState,
    is_measured,
    most_factor,
    next_rate,
)


def found(kappa: float, *, rounds: int = 60, signal: float = 0.3, noise: float = 0.0) -> RateState:
    """Returns the state of a node whose whole step at its own rate moves the policy by ``kappa``, where measurements
    scatter by e to the power of ``noise``."""
    state, draws = RateState(), Random(1)
    for number in range(1, rounds + 1):
        longer = FIRST_LONGER if number <= FIRST_MEASURED else 1.0
        moved = kappa * longer * (state.factor * signal) ** 2 * math.exp(draws.gauss(0.0, noise))
        state = next_rate(state, moved if is_measured(state, number) else None, signal, number)
    return state


@pytest.mark.parametrize("wrong_by", [0.1, 0.3, 3.0, 10.0])
def test_rate_that_is_wrong_by_ten_times_either_way_ends_where_steps_move_the_policy_as_far_as_aimed(
    wrong_by: float,
) -> None:
    state = found(TARGET * wrong_by**2)
    assert state.factor * wrong_by == pytest.approx(1.0)
    assert 0 < state.since_round <= FIRST_MEASURED and ("long" in state.because) == (wrong_by > 1)
    assert 0.4 < found(TARGET * wrong_by**2, noise=1.0).factor * wrong_by < 2.5


def test_right_rate_stays_whatever_single_measurements_say() -> None:
    assert found(TARGET).factor == 1.0
    assert found(TARGET, noise=0.7, rounds=400).since_round == 0


def test_rate_does_not_rise_on_the_first_steps_of_an_adapter_which_move_nothing_yet() -> None:
    state = RateState()
    for number in range(1, FIRST_MEASURED):
        state = next_rate(state, 1e-6 * TARGET, 1.0, number)
        assert state.factor == 1.0
    assert next_rate(state, 1e-6 * TARGET, 1.0, FIRST_MEASURED).factor == UP


def test_rate_of_an_adapter_falls_and_never_rises_above_its_own() -> None:
    short = long = RateState()
    for number in range(1, 30):
        short = next_rate(short, 1e-4 * TARGET, 1.0, number, most=1.0)
        long = next_rate(long, 1e4 * TARGET * long.factor**2, 1.0, number, most=1.0)
    assert short.factor == 1.0 and long.factor < 0.1


def test_batches_that_say_little_lead_to_the_same_rate() -> None:
    assert found(9 * TARGET, signal=0.01).factor == pytest.approx(found(9 * TARGET, signal=0.3).factor)


@pytest.mark.parametrize("signal", [0.6, 1.0])
def test_step_on_a_batch_that_nearly_all_speaks_moves_the_policy_no_further_than_one_that_was_measured(
    signal: float,
) -> None:
    kappa = TARGET / 81
    assert kappa * (found(kappa, signal=signal).factor * signal) ** 2 == pytest.approx(MOST_MOVED)
    assert kappa * (found(kappa, signal=0.3).factor * 0.3) ** 2 == pytest.approx(TARGET * 0.3**2)


@pytest.mark.parametrize("kl", [None, 0.0, -1e-9, math.nan, math.inf])
def test_measurement_that_tells_nothing_changes_nothing(kl: float | None) -> None:
    state = RateState(0.5, 0.5, 0.1, 3)
    assert next_rate(state, kl, 0.4, 9) == state
    assert next_rate(state, 0.1, 0.0, 9) == state


@given(st.lists(st.tuples(st.floats(5e-324, 1.7e308), st.floats(1e-6, 1.0)), max_size=60))
def test_nothing_measured_leaves_the_bounds_or_changes_the_rate_faster(measured: list[tuple[float, float]]) -> None:
    state = RateState()
    for kl, signal in measured:
        before, state = state.factor, next_rate(state, kl, signal, 1)
        assert state.factor * (1 + 1e-9) >= LEAST_FACTOR and state.factor <= MOST_FACTOR * (1 + 1e-9)
        assert before / DOWN <= state.factor * (1 + 1e-9) and state.factor <= before * UP * (1 + 1e-9)


def test_rate_of_a_model_larger_than_those_measured_rises_less() -> None:
    state, most = RateState(), most_factor(1e-6, adapter=False)
    for number in range(40):
        state = next_rate(state, 1e-5 * TARGET * state.factor**2, 1.0, number, most=most)
    assert state.factor == pytest.approx(MOST_OF_LARGE)
    assert [most_factor(3e-4, adapter=adapter) for adapter in (False, True)] == [MOST_FACTOR, 1.0]


def test_first_steps_are_measured_and_then_one_in_some() -> None:
    assert all(is_measured(RateState(measured=number), number) for number in range(FIRST_MEASURED))
    rounds = range(SETTLED_EVERY)
    assert sum(is_measured(RateState(measured=FIRST_MEASURED), n) for n in rounds) == SETTLED_EVERY // MEASURED_EVERY
    assert sum(is_measured(RateState(measured=SETTLED), n) for n in rounds) == 1
