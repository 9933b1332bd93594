"""What ``adapters.py`` and ``updates.py`` make of their runs."""

from __future__ import annotations

import pytest
import torch

from scripts.experiments import adapters, updates
from scripts.experiments.adapters import ALONE, SHARED, gain, less_than
from scripts.experiments.family import AVERAGED, NONE
from scripts.experiments.harness.plans import Measurement, NodeHistory, RunPlan, RunResult
from scripts.experiments.language_model.averaging_run import rule_of


def finished(name: str, seed: int, success: float) -> RunResult:
    node = NodeHistory("a", "m", [0.5], [10], [None], [None], 0, 0, 0, 0, 0, {}, [Measurement(80, {}, {"s": success})])
    plan = RunPlan("family", name, seed, 80, (), (), (80,), 1, 1)
    return RunResult("k", name, seed, 1.0, 1.0, [node], plan, [0.1])


def of_successes(**values: list[float]) -> dict[str, list[RunResult]]:
    named = {"none": NONE, "averaged": AVERAGED, "alone": ALONE, "shared": SHARED}
    return {named[k]: [finished(named[k], seed, value) for seed, value in enumerate(v)] for k, v in values.items()}


def test_every_row_on_the_language_model_has_a_rule_that_takes_an_outer_step() -> None:
    weights = {"one": torch.zeros(4096)}
    for plan in (updates.plan(condition, 0, 10) for condition in updates.EXPERIMENT.conditions):
        moved = rule_of(plan, weights).outer([{"one": torch.full((4096,), 0.01)} for _ in range(plan.replicas)])
        assert len(moved) == plan.replicas, plan.condition
        assert all(each["one"].isfinite().all() for each in moved), plan.condition


def test_gains_are_compared_over_the_seeds_that_all_four_conditions_have() -> None:
    results = of_successes(none=[0.5, 0.6], averaged=[0.6, 0.8], alone=[0.3], shared=[0.38])
    assert gain(results, AVERAGED, NONE, 80) == pytest.approx({0: 0.1, 1: 0.2})
    less = less_than((AVERAGED, NONE), results, SHARED, ALONE, 80)
    assert less is not None and less.count == 1
    assert less.mean == pytest.approx(0.02)
    assert less_than((AVERAGED, NONE), of_successes(none=[0.5], averaged=[0.6]), SHARED, ALONE, 80) is None
    assert "| adapters, averaging against adapters, no averaging | 0.080 |" in adapters.document(results, 80, "").text(
        ""
    )


def test_each_row_of_updates_is_compared_with_one_of_its_own_kind() -> None:
    for name, row in updates.ROWS.items():
        if row.base is not None:
            base = updates.ROWS[row.base]
            assert base.rule == "noloco", name
            assert (base.replicas, base.fast, base.away) == (row.replicas, row.fast, row.away), name
    assert {row.replicas for row in updates.ROWS.values() if row.has_bar} == set(updates.COUNTS)
