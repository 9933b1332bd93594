"""A learner that finds its rate: what it measures, changes, keeps and reports; and one whose rate is configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.configuration import LearnerSection
from node.learner.steps.rate_control import LEAST_FACTOR, RateState
from tests.node.learner.letter_node import Node, policy

AUTO = LearnerSection(own_groups=8, completions=4, foreign_groups=0)


def test_rate_that_is_far_too_low_rises_and_every_round_says_since_when_and_why() -> None:
    node = Node("ann", learner=AUTO)
    own = node.optimizer.rate
    node.learner.state.rate = RateState(LEAST_FACTOR, LEAST_FACTOR)
    rounds = [node.round() for _ in range(12)]
    assert rounds[0].step_kl is not None and rounds[0].step_kl > 0
    last, rates = rounds[-1], [done.learning_rate or 0.0 for done in rounds]
    assert last.found_rate is not None and 0 < last.found_rate.since_round <= 12
    assert "short" in last.found_rate.because
    assert rates == sorted(rates) and rates[-1] > 2 * own * LEAST_FACTOR
    assert rates[-1] == pytest.approx(own * node.learner.state.rate.factor)


def test_found_rate_is_part_of_checkpoints_and_the_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = Node("ann", learner=AUTO, folder=tmp_path / "whole", rounds=4)
    whole.learner.run(lambda: None)
    Node("ann", learner=AUTO, folder=tmp_path / "parts", rounds=2).learner.run(lambda: None)
    second = Node("ann", learner=AUTO, own_policy=policy(77), folder=tmp_path / "parts", rounds=2)
    second.learner.run(lambda: None)
    assert second.learner.state.rate == whole.learner.state.rate != RateState()
    assert second.learner.state == whole.learner.state


def test_configured_rate_is_measured_by_nothing_and_changed_by_nothing() -> None:
    pinned = AUTO.model_copy(update={"learning_rate": 1e-2})
    node = Node("ann", learner=pinned)
    node.learner.state.rate = RateState(0.5, 0.5, 0.1, 3, since_round=1)  # of a checkpoint made under "auto"
    done = [node.round() for _ in range(2)][-1]
    assert done.learning_rate == 1e-2
    assert done.step_kl is None and done.found_rate is None
