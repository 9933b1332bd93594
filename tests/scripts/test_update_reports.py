"""What ``updates.py`` makes of its runs."""

from __future__ import annotations

import torch

from scripts.experiments import updates
from scripts.experiments.language_model.averaging_run import rule_of


def test_every_row_on_the_language_model_has_a_rule_that_takes_an_outer_step() -> None:
    weights = {"one": torch.zeros(4096)}
    for plan in (updates.plan(condition, 0, 10) for condition in updates.EXPERIMENT.conditions):
        moved = rule_of(plan, weights).outer([{"one": torch.full((4096,), 0.01)} for _ in range(plan.replicas)])
        assert len(moved) == plan.replicas, plan.condition
        assert all(each["one"].isfinite().all() for each in moved), plan.condition


def test_each_row_of_updates_is_compared_with_one_of_its_own_kind() -> None:
    for name, row in updates.ROWS.items():
        if row.base is not None:
            base = updates.ROWS[row.base]
            assert base.rule == "noloco", name
            assert (base.replicas, base.fast, base.away) == (row.replicas, row.fast, row.away), name
    assert {row.replicas for row in updates.ROWS.values() if row.has_bar} == set(updates.COUNTS)
