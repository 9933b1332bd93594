"""What ``averaging.py`` and ``family.py`` make of their runs, and a family's averaging on the simulated network."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from scripts.experiments import averaging, family
from scripts.experiments.averaging import COMPRESSED, DECAYING, DILOCO, NOLOCO, dense_of, final_loss
from scripts.experiments.family import AVERAGED, BOTH, NONE, SHARED, gains
from scripts.experiments.harness.experiment import Condition, per_cent_more, verdict
from scripts.experiments.harness.nodes_run import execute
from scripts.experiments.harness.plans import Measurement, NodeHistory, NodePlan, RunPlan, RunResult
from scripts.experiments.language_model.averaging_run import Level, ReplicaResult
from scripts.experiments.reports.intervals import estimate


def finished(name: str, seed: int, loss: float) -> ReplicaResult:
    plan = averaging.plan(Condition(name, "", {}), seed, 10)
    levels = [Level(0, 2.0, 2.0, 0.0), Level(10, loss, loss, 0.1)]
    return ReplicaResult("k", name, seed, 1.0, 1.0, levels, 100.0, 50, plan)


def of_losses(**losses: list[float]) -> dict[str, list[ReplicaResult]]:
    return {name: [finished(name, seed, loss) for seed, loss in enumerate(each)] for name, each in losses.items()}


def test_losses_are_compared_seed_by_seed_of_those_that_both_ran() -> None:
    results = of_losses(NoLoCo=[1.0, 2.0, 3.0], DiLoCo=[1.01, 2.02])
    percent = per_cent_more(results, DILOCO, NOLOCO, final_loss)
    assert percent is not None
    assert percent.mean == pytest.approx(1.0) and percent.count == 2
    assert percent.half_width < 1e-9
    assert per_cent_more(results, COMPRESSED, NOLOCO, final_loss) is None


def test_dense_is_the_one_of_the_same_learning_rate() -> None:
    assert dense_of(DECAYING + COMPRESSED) == DECAYING + NOLOCO
    assert dense_of(COMPRESSED) == NOLOCO


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([1.1, 1.2, 1.0], "missed"),
        ([0.5, 0.6, 0.7], "met by the whole interval"),
        ([0.0, 1.0, 0.8], "met by the mean"),
        ([0.5], "met by the mean"),
        ([1.5], "missed"),
    ],
)
def test_verdict_tells_a_mean_from_an_interval(differences: list[float], said: str) -> None:
    assert verdict(estimate(differences), 1.0) == said


def test_conditions_of_the_bars_run_with_every_seed_asked_for() -> None:
    seeds = {condition.name: condition.seeds(5) for condition in averaging.EXPERIMENT.conditions}
    assert {seeds[name] for name in averaging.BARS} == {5}
    assert 1 in seeds.values()


def test_report_of_averaging_stands_on_its_runs() -> None:
    results = of_losses(NoLoCo=[1.3, 1.4], DiLoCo=[1.3, 1.41], compressed=[1.35, 1.45])
    text = averaging.document(results, 10, "python averaging.py").text("")
    assert "| NoLoCo against DiLoCo | -0.35 ± 4.51 | ≤ 1 | met by the mean |" in text
    assert "| compressed against NoLoCo | 3.71 ± 1.75 | ≤ 1 | missed |" in text


def test_rows_of_liars_stand_in_a_table_of_their_own_against_those_without() -> None:
    results = of_losses(NoLoCo=[1.0, 2.0], DiLoCo=[2.0, 4.0]) | {
        averaging.JUDGED: [
            msgspec.structs.replace(
                finished(averaging.JUDGED, seed, 1.1 * (1 + seed)),
                verdicts={"lies taken": 1, "lies refused": 3, "weight of lies": 0.5, "honest taken": 8},
            )
            for seed in range(2)
        ]
    }
    rest, _, liars = (
        averaging.document(results, 10, "python averaging.py").text("").partition("## One liar among eight")
    )
    assert (
        f"| {averaging.JUDGED} | 1.6500 ± 6.9883 | 10.00 ± 0.00 | -45.00 ± 0.00 | 75.0 | 0.50 | 0.0 | 0.000 |" in liars
    )
    assert f"| {averaging.JUDGED} | 1.65" not in rest


def family_run(name: str, seed: int, success: float, tokens: int) -> RunResult:
    measured = [Measurement(0, {"a": 0.1}, {"a": 0.1}), Measurement(2, {"a": success}, {"a": success})]
    node = NodeHistory("n", "m", [0.0, success], [tokens, tokens], [None], [None], 0, 0, 0, 0, 0, {}, measured)
    plan = RunPlan("family", name, seed, 2, (), (), (), 1, 0)
    return RunResult("k", name, seed, 1.0, 1.0, [node, node], plan, [0.0, 0.1])


def test_family_gains_are_paired_by_seed_and_at_the_fewest_tokens_of_any_run() -> None:
    results = {
        NONE: [family_run(NONE, seed, 0.4 + 0.1 * seed, 10) for seed in range(2)],
        AVERAGED: [family_run(AVERAGED, seed, 0.6 + 0.1 * seed, 20) for seed in range(2)],
    }
    more = gains(results, AVERAGED, NONE, 2)
    assert more is not None
    at_the_end, at_equal_tokens = more
    assert at_the_end.mean == pytest.approx(0.2)
    assert at_the_end.half_width < 1e-9
    assert at_equal_tokens.mean == pytest.approx((0.0 - 0.2 + 0.0 - 0.25) / 2)  # 20 of its 40 tokens taught nothing
    assert gains(results, BOTH, SHARED, 2) is None


def test_averaging_and_no_averaging_differ_in_nothing_else() -> None:
    for plain, averaged in ((NONE, AVERAGED), (SHARED, BOTH)):
        before, after = ({c.name: c.settings for c in family.CONDITIONS}[name] for name in (plain, averaged))
        assert before["learner"] == after["learner"]
        assert after.keys() - before.keys() == {"averaging"}


def test_family_that_averages_stays_nearer_together_and_the_same_plan_is_the_same_run(tmp_path: Path) -> None:
    learner = {"own_groups": 2, "foreign_groups": 0, "share_groups": 0, "completions": 4, "learning_rate": 1e-3}

    def run(settings: dict[str, object]) -> RunResult:
        nodes = tuple(NodePlan(name, "builtin:wren", settings) for name in ("ann", "bob"))
        return execute(RunPlan("test", "two", 3, 8, nodes, ("spell_backward",), (8,), 1, 0), tmp_path)

    apart = run({"learner": learner})
    averaging_section = {"every_rounds": 1, "encoding": "dense-bf16"}
    together, again = (run({"learner": learner, "averaging": averaging_section}) for _ in range(2))
    assert together.nodes == again.nodes
    assert together.apart == again.apart
    assert [node.outer_steps for node in apart.nodes] == [0, 0]
    assert all(node.outer_steps >= 2 and node.averaging_bytes > 0 for node in together.nodes)
    assert 0 < together.apart[-1] < apart.apart[-1]
