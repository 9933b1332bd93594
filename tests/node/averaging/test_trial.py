"""Whether a step did harm: what noise explains is kept, a collapse is seen at once, small harm in the partner's sum."""

from __future__ import annotations

from random import Random

import pytest

from node.averaging.trial import MAX_SUM, MIN_SHARE, REMEMBERED, compared, sum_after, with_groups

COMPLETIONS = 8


def groups(random: Random, success: float, count: int) -> list[float]:
    """Mean rewards of groups of completions whose prompts differ in difficulty."""
    means = []
    for _ in range(count):
        prompt = min(1.0, max(0.0, random.gauss(success, 0.2)))
        means.append(sum(random.random() < prompt for _ in range(COMPLETIONS)) / COMPLETIONS)
    return means


def test_a_collapse_from_half_to_nothing_is_seen_in_one_round_of_eight_groups() -> None:
    random = Random(1)
    before = {"a": groups(random, 0.5, 32), "b": groups(random, 0.5, 32)}
    assert compared(before, {"a": [0.0] * 4, "b": [0.0] * 4}, 1).is_harm


def test_a_task_that_becomes_easier_hides_no_harm_to_another_by_its_number_alone() -> None:
    before = {"a": [0.9, 1.0] * 8, "b": [0.1, 0.0] * 8}
    only_the_hard_one_was_drawn = {"b": [0.0, 0.1] * 8}
    assert compared(before, only_the_hard_one_was_drawn, 5).change == pytest.approx(0.0)


def test_small_harm_is_left_to_learning_and_without_a_past_nothing_is_judged() -> None:
    before = {"a": [0.5, 0.6] * 16}
    slightly = {"a": [0.55 * (1.0 - 0.5 * MIN_SHARE)] * 500}
    found = compared(before, slightly, 5)
    assert found.change < 0.0 and not found.is_harm
    assert compared({}, {"a": [0.0] * 100}, 5).score == 0.0
    assert compared({"a": [1.0, 1.0]}, {"a": [0.0] * 100}, 5).groups == 0


def test_steady_harm_of_one_deviation_a_step_is_found_in_about_ten_and_good_steps_buy_no_credit() -> None:
    total, steps = 0.0, 0
    while total >= -MAX_SUM:
        total, steps = sum_after(total, -1.0), steps + 1
    assert 8 <= steps <= 12
    for _ in range(100):
        total = sum_after(total, 3.0)
    assert total == 0.0


def test_what_is_remembered_of_a_task_is_bounded() -> None:
    history: dict[str, tuple[float, ...]] = {}
    for number in range(100):
        history = with_groups(history, {"a": [float(number)]})
    assert history == {"a": tuple(float(number) for number in range(100 - REMEMBERED, 100))}
