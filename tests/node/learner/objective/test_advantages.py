"""Rewards to advantages, by every rule."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from node.configuration import AdvantageMethod
from node.learner.objective.advantages import (
    MEDIAN_BOUND,
    AdvantageRule,
    Capabilities,
    capability_advantages,
    median_advantages,
    turn_advantages,
)

METHODS: tuple[AdvantageMethod, ...] = get_args(AdvantageMethod)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("group", np.array([-1.0, 0.0, 0.0, 1.0]) / (np.std([0, 1, 1, 2], ddof=1) + 1e-4)),
        ("mean", [-1.0, 0.0, 0.0, 1.0]),
        ("batch", np.array([-1.0, 0.0, 0.0, 1.0]) / (np.std([0, 1, 1, 2, 5, 9], ddof=1) + 1e-4)),
    ],
)
def test_each_rule_by_hand(method: AdvantageMethod, expected: list[float]) -> None:
    rule = AdvantageRule.of(method, [[0, 1, 1, 2], [5, 9]])
    np.testing.assert_allclose(rule(floats(0, 1, 1, 2)), expected, rtol=1e-6)


def test_action_is_credited_with_what_was_earned_from_its_turn_on() -> None:
    earned = [(0.5, 0.0, 0.5), (0.0, 0.5), ()]  # returns .5 behind 1, .5, .5; 0 behind .5, .5, .5; nothing known
    returns = np.array([[1.0, 0.5, 0.5], [0.5, 0.5, 0.5], [0.0, 0.0, 0.0]])
    scale = np.sqrt(returns.var(axis=0, ddof=1).mean()) + 1e-4
    np.testing.assert_allclose(turn_advantages(earned, 3), (returns - returns.mean(axis=0)) / scale, rtol=1e-6)


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(1, 5)), min_size=1, max_size=8))
def test_where_the_last_action_alone_earns_something_every_action_has_the_advantage_of_the_group(
    conversations: list[tuple[float, int]],
) -> None:
    earned = [(*[0.0] * (turns - 1), reward) for reward, turns in conversations]
    of_group = AdvantageRule("turn")(floats(*(reward for reward, _ in conversations)))
    np.testing.assert_allclose(turn_advantages(earned, 5), np.tile(of_group[:, None], 5), rtol=1e-4, atol=1e-4)


def test_nothing_is_credited_where_all_earn_the_same_in_every_turn() -> None:
    assert not turn_advantages([(0.1, 0.2), (0.1, 0.2)], 2).any()
    assert not turn_advantages([(0.1, 0.2)], 2).any()


def test_median_rule_divides_by_the_deviation_from_the_median() -> None:
    rewards = floats(0, 1, 2, 4, 9)  # median 2, deviations 2 1 0 2 7: their median 2
    np.testing.assert_allclose(median_advantages(rewards), (rewards - 2) / 2.001, rtol=1e-6)


def test_median_rule_with_mostly_equal_rewards_falls_back_to_the_standard_deviation() -> None:
    """MAD is 0 for one right answer among eight; divided by 1e-3 its advantage would be 1000."""
    rewards = floats(0, 0, 0, 0, 0, 0, 0, 1)
    expected = 1 / (rewards.std(ddof=1) + 1e-4)
    assert median_advantages(rewards).tolist() == pytest.approx([0] * 7 + [expected], rel=1e-6)
    assert expected == pytest.approx(2.83, abs=0.01)


def test_median_rule_bounds_what_lies_far_outside() -> None:
    assert median_advantages(floats(0.5, 0.501, 0.502, 9.0)).max() == MEDIAN_BOUND


@given(
    st.sampled_from(METHODS),
    st.lists(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8), min_size=1, max_size=4),
)
def test_advantages_are_finite_order_the_rewards_and_vanish_where_all_are_equal(
    method: AdvantageMethod, groups: list[list[float]]
) -> None:
    rule = AdvantageRule.of(method, groups)
    for group in groups:
        rewards = floats(*group)
        advantages = rule(rewards)
        assert advantages.dtype == np.float32 and np.isfinite(advantages).all()
        assert (np.diff(advantages[np.argsort(rewards)]) >= 0).all()
        if (rewards == rewards[0]).all():
            assert not advantages.any()
        elif method == "median":
            assert np.abs(advantages).max() <= MEDIAN_BOUND
        else:
            assert abs(float(advantages.sum())) <= 1e-3 * max(1.0, float(np.abs(advantages).max()))


def test_a_batch_of_one_reward_divides_by_nothing() -> None:
    assert AdvantageRule.of("batch", [[1.0]])(floats(1.0)).tolist() == [0.0]
    assert AdvantageRule.of("batch", [])(floats()).tolist() == []


def test_a_more_capable_peers_group_is_held_against_what_the_learner_would_have_had() -> None:
    """κ = 2: mean R / κ = .25; std of (1, 1, 0, 0) is √(1/3)."""
    expected = 2 * np.array([0.75, 0.75, -0.25, -0.25]) / (np.sqrt(1 / 3) + 1e-4)
    np.testing.assert_allclose(capability_advantages(floats(1, 1, 0, 0), 2.0, 0.1), expected, rtol=1e-6)


def test_a_baseline_above_every_reward_gives_way_to_the_learners_own_success() -> None:
    """κ = .4: mean R / κ = .75 / .4 > 1."""
    rewards = floats(1, 1, 1, 0)
    expected = 0.4 * (rewards - 0.9) / (0.5 + 1e-4)
    np.testing.assert_allclose(capability_advantages(rewards, 0.4, 0.9), expected, rtol=1e-5)


def test_capability_gives_a_group_of_equal_rewards_no_signal() -> None:
    assert not capability_advantages(floats(1, 1, 1), 3.0, 0.0).any()


def test_capability_is_the_share_of_positive_rewards_over_the_last_five_batches() -> None:
    found = Capabilities()
    assert found.ratio("p", "self") == 1.0
    found.observe([("self", [1.0, 0.0]), ("p", [1.0]), ("self", [0.0, 0.0])])  # own .25, p's 1
    assert found.ratio("p", "self") == pytest.approx(4.0)
    found.observe([("self", [0.3, 0.0, 0.0, 0.2])])  # own .5; p keeps what it had
    assert found.ratio("p", "self") == pytest.approx(1 / 0.375)
    assert found.ratio("q", "self") == 1.0
    for _ in range(5):
        found.observe([("self", [1.0]), ("p", [0.0])])
    assert found.ratio("p", "self") == 0.1
    assert found.ratio("self", "p") == 10.0
    found.observe([("q", [0.0])])
    assert found.ratio("q", "p") == 1.0  # neither ever had a reward
