"""Advantages, running success and what is worth sharing: pure decisions of the learner."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from node.learner.allocation.success import INITIAL_SUCCESS, SuccessTracker
from node.learner.generation.own_rollouts import worth_sharing
from node.learner.objective.advantages import group_advantages, learner_relative_advantages
from protocol.limits import TASKS_PER_HEARTBEAT


def test_group_advantages_are_standardised_with_the_unbiased_deviation() -> None:
    rewards = np.array([1, 0, 0, 0.5], dtype=np.float32)
    expected = (rewards - 0.375) / (np.std(rewards, ddof=1) + 1e-4)
    np.testing.assert_allclose(group_advantages(rewards), expected, rtol=1e-6)


@pytest.mark.parametrize("rewards", [[0.3] * 7, [1, 1], [0.5]])
def test_group_without_spread_has_exactly_no_advantage(rewards: list[float]) -> None:
    assert not group_advantages(np.array(rewards, dtype=np.float32)).any()


def test_learner_relative_advantage_values_an_all_right_group_and_never_punishes() -> None:
    advantages = learner_relative_advantages(np.array([1, 1, 0.1], dtype=np.float32), 0.2)
    np.testing.assert_allclose(advantages, [0.8, 0.8, 0], rtol=1e-6)


def test_success_runs_towards_what_the_learner_earns() -> None:
    tracker = SuccessTracker()
    assert tracker.of("add") == INITIAL_SUCCESS
    tracker.observe({"add": [1.0, 0.0], "sort": []})
    assert tracker.of("add") == pytest.approx(0.9 * INITIAL_SUCCESS + 0.1 * 0.5)
    assert tracker.of("sort") == INITIAL_SUCCESS
    for _ in range(200):
        tracker.observe({"add": [1.0]})
    assert tracker.of("add") == pytest.approx(1.0)


def test_success_survives_a_checkpoint_and_its_copy_stands_still() -> None:
    tracker = SuccessTracker()
    tracker.observe({"add": [1.0, 0.0]})
    copy = tracker.copy()
    restored = msgspec.convert(msgspec.to_builtins(tracker), SuccessTracker)
    tracker.observe({"add": [1.0]})
    assert copy.classes == restored.classes != tracker.classes


def test_announced_success_is_within_the_protocols_bounds() -> None:
    tracker = SuccessTracker()
    for number in range(TASKS_PER_HEARTBEAT + 5):
        tracker.observe({f"task{number}": [50.0] * (1 + number)})
    announced = tracker.announced()
    assert len(announced) == TASKS_PER_HEARTBEAT
    assert announced[0].samples == TASKS_PER_HEARTBEAT + 5  # those most sampled come first
    assert all(0 <= each.success <= 1 for each in announced)


def test_worth_sharing_takes_turns_between_tasks_and_leaves_out_what_is_all_wrong() -> None:
    rewards = [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    tasks = ["easy", "easy", "easy", "hard", "easy"]
    assert worth_sharing(rewards, tasks, 8) == [0, 3, 4, 1]
    assert worth_sharing(rewards, tasks, 2) == [0, 3]
    assert worth_sharing(rewards, tasks, 0) == []


def test_measured_success_holds_nothing_of_the_initial_value_from_the_first_round_on() -> None:
    tracker = SuccessTracker()
    for reward in (0.0, 0.0, 0.0):
        tracker.observe({"add": [reward, reward], "sort": [0.7]})
        assert tracker.classes["add"].measured == pytest.approx(0.0) and tracker.classes[
            "sort"
        ].measured == pytest.approx(0.7)
    assert tracker.of("add") > 0.0  # the baseline keeps it
    restored = msgspec.convert(msgspec.to_builtins(tracker), SuccessTracker)
    assert restored.classes == tracker.classes
