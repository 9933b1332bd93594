"""What ``adapters.py`` and ``updates.py`` make of their runs, and what they try on nodes."""

from __future__ import annotations

import pytest
import torch

from node.averaging import rules
from node.averaging.compressed import CompressedConstants
from node.configuration import LearnerSection, PolicySection
from node.learner.steps.optimizer import MasterAdamW
from node.policy.first_factors import is_first_factor
from node.policy.policy import Policy
from scripts.experiments import adapters, family, unsent, updates
from scripts.experiments.adapters import ALONE, SHARED, gain, less_than
from scripts.experiments.family import AVERAGED, NONE
from scripts.experiments.harness.plans import Measurement, NodeHistory, RunPlan, RunResult
from scripts.experiments.harness.trials import SharedUpdates, change_first_factors, other_compressed_constants
from scripts.experiments.language_model.averaging_run import ReplicaPlan, rule_of


def finished(name: str, seed: int, success: float) -> RunResult:
    node = NodeHistory("a", "m", [0.5], [10], [None], [None], 0, 0, 0, 0, 0, {}, [Measurement(80, {}, {"s": success})])
    plan = RunPlan("family", name, seed, 80, (), (), (80,), 1, 1)
    return RunResult("k", name, seed, 1.0, 1.0, [node], plan, [0.1])


def of_successes(**values: list[float]) -> dict[str, list[RunResult]]:
    named = {"none": NONE, "averaged": AVERAGED, "alone": ALONE, "shared": SHARED}
    return {named[k]: [finished(named[k], seed, value) for seed, value in enumerate(v)] for k, v in values.items()}


def test_every_row_on_the_language_model_has_a_rule_that_takes_an_outer_step() -> None:
    weights = {"one": torch.zeros(4096)}
    plans = [updates.plan(condition, 0, 10) for condition in updates.conditions()]
    plans += [unsent.plan(condition, 0, 10) for condition in unsent.EXPERIMENT.conditions]
    for plan in plans:
        if isinstance(plan, ReplicaPlan):
            rule = rule_of(plan, weights)
            moved = rule.outer([{"one": torch.full((4096,), 0.01)} for _ in range(plan.replicas)])
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
    rows = {**updates.LANGUAGE, **unsent.LANGUAGE}
    for name, row in rows.items():
        if row.base is not None:
            base = rows[row.base]
            assert base.rule == "noloco", name
            assert (base.replicas, base.fast, base.away) == (row.replicas, row.fast, row.away), name
    counted = {row.replicas for row in updates.LANGUAGE.values() if row.has_bar}
    assert counted == set(updates.COUNTS)


def test_reinforced_rows_and_adapters_have_the_runs_of_whole_weights_in_common() -> None:
    of_adapters = {c.name: adapters.EXPERIMENT.plan(c, 1, family.ROUNDS) for c in adapters.EXPERIMENT.conditions}
    of_updates = {c.name: updates.EXPERIMENT.plan(c, 1, 600) for c in updates.EXPERIMENT.conditions}
    of_unsent = {c.name: unsent.EXPERIMENT.plan(c, 1, 600) for c in unsent.EXPERIMENT.conditions}
    for name in (NONE, AVERAGED):
        assert of_adapters[name].key == of_updates[name].key == of_unsent[name].key
    for plans in (of_updates, of_unsent):
        assert len({plan.key for plan in plans.values()}) == len(plans)


def test_trial_with_other_constants_of_compressed_averaging_ends_with_the_run() -> None:
    with other_compressed_constants({"kept": 256, "unsent_kept": 0.0}):
        assert (rules.COMPRESSED.kept, rules.COMPRESSED.unsent_kept) == (256, 0.0)
    assert CompressedConstants() == rules.COMPRESSED


def test_of_unsent_each_table_has_the_rows_that_have_runs() -> None:
    reinforced = of_successes(none=[0.5, 0.6], averaged=[0.7, 0.8])
    pairs = "pairs, unsent kept"
    reinforced[pairs] = [finished(pairs, 0, 0.6)]
    text = unsent.document({}, reinforced, 600, "").text("")
    assert f"| {pairs} | 0.600 | 0.100 | -0.100 |" in text
    assert "Language\n\n" not in text


def test_first_factors_of_a_trial() -> None:
    section = PolicySection(model="builtin:wren", device="cpu", adapter_rank=2)
    policies = [Policy.load(section) for _ in range(3)]
    for policy, name in zip(policies[:2], ("ann", "ben"), strict=True):
        change_first_factors(policy, name, "own")
    names = [name for name in policies[0].trainable() if is_first_factor(name)]
    assert all(not torch.equal(policies[0].trainable()[n], policies[1].trainable()[n]) for n in names)
    change_first_factors(policies[2], "cat", "frozen")
    assert not any(map(is_first_factor, policies[2].trainable()))
    assert len(policies[2].trainable()) == len(names)


def test_nodes_take_each_others_updates_every_so_many_rounds() -> None:
    weights = [torch.nn.Parameter(torch.zeros(50)) for _ in range(3)]
    optimizers = [MasterAdamW({"w": each}, LearnerSection(learning_rate=1e-3)) for each in weights]
    shared = SharedUpdates(optimizers, 1, 2, pace=9.0, kept=4096, unsent_kept=1.0)
    with torch.no_grad():
        weights[0][:25], weights[1][25:] = 1.0, -2.0
    shared.after_round(1)
    assert shared.steps == 0 and not weights[2].any()
    shared.after_round(2)
    everything = torch.cat([torch.ones(25), torch.full((25,), -2.0)])
    for each in weights:
        torch.testing.assert_close(each.detach(), everything, atol=0.01, rtol=0)
    assert shared.steps == 1 and shared.received_bytes > 0
