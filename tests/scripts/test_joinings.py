"""What false alarms are counted with: a joining drawn again accuses where success fell, and a walk is measured."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.attacks.joinings import Joining, measured, walk_of, wilson_high
from scripts.attacks.poisoning.meeting import TOGETHER, Seen

ALONE = 40
TASKS = ("add", "sort")


def seen(after: float) -> Seen:
    """A learner whose success is .6 alone, and ``after`` from the joining on."""
    draws = np.random.default_rng(3)
    rounds = ALONE + TOGETHER
    success = [0.6 if number < ALONE else after for number in range(rounds)]
    groups = [{task: list(draws.binomial(4, p, 16) / 4) for task in TASKS} for p in success]
    shares = [{} if number < ALONE else {"robin": 1.0} for number in range(rounds)]
    return Seen("wren", groups, shares, [0.0] * rounds, [])


@pytest.mark.parametrize(("after", "accused"), [(0.6, False), (0.1, True)])
def test_a_joining_drawn_again_accuses_where_success_fell_with_it(after: float, accused: bool) -> None:
    joining = Joining(seen(after), ALONE + 1)
    assert joining.accuses(None) is accused
    assert {joining.accuses(np.random.default_rng(seed)) for seed in range(5)} == {accused}


def test_a_walk_is_measured_beside_chance() -> None:
    draws = np.random.default_rng(5)
    walks = np.cumsum(draws.normal(0.0, 0.01, (200, 200)), axis=1)
    chance = draws.normal(0.0, 0.05, walks.shape)
    assert walk_of((walks + chance).tolist()) == pytest.approx(0.01, rel=0.15)
    assert walk_of(chance.tolist()) < 0.004


def test_level_and_scatter_of_prompts_are_measured() -> None:
    found = measured([seen(0.6)])
    assert found.level == pytest.approx(0.6, abs=0.05) and found.node.tasks == len(TASKS)
    assert found.node.kappa > 10  # prompts of a task are alike here


def test_no_accusation_in_few_leaves_the_interval_wide() -> None:
    assert wilson_high(0, 200) == pytest.approx(0.0188, abs=1e-3)
    assert wilson_high(0, 20) > 0.1
