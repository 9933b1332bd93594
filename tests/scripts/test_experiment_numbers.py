"""What the experiments make of their runs: intervals, comparisons at equal tokens, plots, reports."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.experiments.harness.plans import (
    Measurement,
    NodeHistory,
    NodePlan,
    RunPlan,
    RunResult,
    load_result,
    result_path,
    save_result,
)
from scripts.experiments.reports.intervals import (
    Estimate,
    estimate,
    over_tokens,
    paired,
    smoothed,
    t_975,
    tokens_to_reach,
)
from scripts.experiments.reports.plots import Line, line_plot, ticks
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.reports.success_by_tokens import share_of_tokens, success_at, success_per_token
from scripts.experiments.sharing import final_success, kept, mean_reward, reward_at_equal_tokens


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (2, 4.303), (30, 2.042), (40, 2.0211), (100, 1.9840)])
def test_quantiles_are_those_of_students_distribution(degrees: int, quantile: float) -> None:
    assert t_975(degrees) == pytest.approx(quantile, abs=5e-4)


def test_interval_holds_the_true_mean_95_times_of_100() -> None:
    rng = random.Random(1)
    draws = [estimate([rng.gauss(3.0, 2.0) for _ in range(3)]) for _ in range(4000)]
    assert sum(each.low <= 3.0 <= each.high for each in draws) / len(draws) == pytest.approx(0.95, abs=0.015)


def test_one_seed_has_no_interval_and_says_so_by_silence() -> None:
    alone = estimate([0.5])
    assert math.isinf(alone.half_width)
    assert alone.text() == "0.500"
    assert estimate([0.5, 0.7]).text(1) == "0.6 ± 1.3"


def test_paired_differences_cancel_what_seeds_share() -> None:
    ours, theirs = [0.1, 0.5, 0.9], [0.0, 0.41, 0.79]
    assert estimate(ours).overlaps(estimate(theirs))
    assert paired(ours, theirs).low > 0


def test_intervals_that_touch_overlap() -> None:
    assert Estimate(1.0, 0.5, 3).overlaps(Estimate(2.0, 0.5, 3))
    assert not Estimate(1.0, 0.4, 3).overlaps(Estimate(2.0, 0.5, 3))


def test_reward_over_tokens_ends_inside_a_round() -> None:
    assert over_tokens([1.0, 0.0], [10, 10], 10) == 1.0
    assert over_tokens([1.0, 0.0], [10, 10], 15) == pytest.approx(10 / 15)
    with pytest.raises(ValueError, match="generated 20 tokens"):
        over_tokens([1.0, 0.0], [10, 10], 21)


def test_tokens_to_a_level_lie_between_two_measurements() -> None:
    assert tokens_to_reach([0, 100, 200], [0.0, 0.4, 0.8], 0.6) == pytest.approx(150)
    assert tokens_to_reach([0, 100], [0.5, 0.6], 0.5) == 0
    assert tokens_to_reach([0, 100], [0.1, 0.2], 0.5) is None


def test_a_running_mean() -> None:
    assert smoothed([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]


def node(reward: list[float], tokens: list[int], *measured: dict[str, float], every: int = 1) -> NodeHistory:
    measurements = [Measurement(every * n, success, success) for n, success in enumerate(measured)]
    nothing: list[float | None] = [None] * len(reward)
    return NodeHistory("n", "m", reward, tokens, nothing, nothing, 0, 0, 0, 0, 0, {}, measurements)


def run(*nodes: NodeHistory, seed: int = 0, condition: str = "c") -> RunResult:
    plan = RunPlan("e", condition, seed, len(nodes[0].reward), (), (), (), 1, 0)
    return RunResult("k", condition, seed, 1.0, 1.0, list(nodes), plan)


def test_skills_lacked_and_had_are_told_apart_by_the_start() -> None:
    one = node([0.2, 0.6], [10, 10], {"a": 0.9, "b": 0.0}, {"a": 0.7, "b": 0.4}, every=2)
    two = node([0.4, 0.8], [10, 10], {"a": 0.01, "b": 0.6}, {"a": 0.8, "b": 0.8}, every=2)
    result = run(one, two)
    assert final_success(result, 2, lacked=True) == pytest.approx((0.4 + 0.8) / 2)
    assert final_success(result, 2, lacked=False) == pytest.approx((0.7 + 0.8) / 2)
    assert kept(result, 2) == pytest.approx(0.0)
    assert mean_reward(result, 1) == pytest.approx(0.3)
    assert reward_at_equal_tokens(result, 20) == pytest.approx(0.5)


def course(*success: float, seed: int = 0, tokens: int = 100) -> RunResult:
    measured = [{"a": value} for value in success]
    return run(node([0.0] * (len(success) - 1), [tokens] * (len(success) - 1), *measured), seed=seed)


def ramp(rounds_to_best: int, best: float, seed: int = 0) -> RunResult:
    """Success rises evenly to ``best`` and stays there, over 20 measurements of 100 tokens each."""
    return course(*(best * min(1.0, n / rounds_to_best) for n in range(21)), seed=seed)


def test_allocator_that_learns_in_half_the_tokens_has_half_the_share() -> None:
    uniform = [ramp(16, 0.6, seed) for seed in range(3)]
    assert share_of_tokens(uniform, uniform, 2000).value == 1.0
    half = share_of_tokens([ramp(8, 0.6, seed) for seed in range(3)], uniform, 2000)
    assert half.value == pytest.approx(0.5, abs=0.06)  # the trailing mean is late by up to a tenth of the budget
    assert (half.low, half.high, half.seeds_there) == (half.value, half.value, 3)


def test_share_counts_runs_that_fail_where_most_succeed() -> None:
    uniform = [ramp(20, 0.5, seed) for seed in range(4)]
    mixed = [ramp(5, 0.9, 0), ramp(5, 0.9, 1), ramp(5, 0.9, 2), ramp(5, 0.4, 3)]
    share = share_of_tokens(mixed, uniform, 2000)
    assert share.seeds_there == 3
    assert 0.15 < share.low < share.value < share.high < 1
    never = share_of_tokens([ramp(5, 0.1, seed) for seed in range(4)], uniform, 2000)
    assert never.text() == "not reached"
    rarely = share_of_tokens([ramp(5, 0.9, 0), *(ramp(5, 0.4, seed) for seed in range(1, 4))], uniform, 2000)
    assert rarely.text().endswith("to never)")


def test_comparison_without_the_same_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="1 runs against 2: a comparison needs the same seeds"):
        share_of_tokens([ramp(5, 0.5)], [ramp(5, 0.5), ramp(5, 0.5, 1)], 2000)


def test_success_per_token_is_the_area_under_the_course() -> None:
    assert success_per_token(course(0.0, 1.0), 100) == pytest.approx(0.5)
    assert success_per_token(course(0.0, 1.0), 50) == pytest.approx(0.25)
    assert success_at(course(0.0, 1.0), [25]).tolist() == pytest.approx([0.25])


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_ascending_and_inside(low: float, span: float) -> None:
    marks = ticks(low, low + span)
    assert 1 <= len(marks) <= 11
    assert marks == sorted(marks)
    assert all(low - 1e-6 * span <= mark <= low + span * (1 + 1e-6) for mark in marks)


def test_plot_is_svg_with_a_line_and_a_band_for_each_condition() -> None:
    x = list(range(1000))
    banded = Line("a < b & c", x, [0.5] * 1000, [0.4] * 1000, [0.6] * 1000)
    svg = line_plot("title", [banded, Line("bare", x, [0.1] * 1000)], x_label="x", y_label="y")
    root = ElementTree.fromstring(svg)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (tags.count("polyline"), tags.count("polygon")) == (2, 1)
    assert "a < b & c" in [element.text for element in root.iter()]
    assert len(svg) < 20_000
    with pytest.raises(ValueError, match="nothing to plot"):
        line_plot("title", [], x_label="x", y_label="y")


def test_report_keeps_what_a_person_wrote(tmp_path: Path) -> None:
    (tmp_path / "trial.notes.md").write_text("It rained.\n", encoding="utf-8")
    document = Document("trial", "A trial", "About it.", "python trial.py")
    document.section("Results", table(["a", "b"], [["1", "x|y"]]))
    document.plot("", "a plot", "<svg/>")
    written = document.write(tmp_path).read_text(encoding="utf-8")
    assert written == document.write(tmp_path).read_text(encoding="utf-8")
    assert written.endswith("## Notes\n\nIt rained.\n")
    assert "| 1 | x∣y |" in written
    assert (tmp_path / "trial.svg").read_text(encoding="utf-8") == "<svg/>"
    with pytest.raises(ValueError, match="under 2 columns"):
        table(["a", "b"], [["1"]])


def plan(**changes: Any) -> RunPlan:
    fields: dict[str, Any] = {
        "experiment": "e", "condition": "4/4 of a kind", "seed": 0, "rounds": 3, "tasks": ("reverse",),
        "nodes": (NodePlan("ann", "m", {"learner": {"own_groups": 4}}),),
        "measure_at": (0, 3), "measure_prompts": 8, "measure_samples": 0,
    }  # fmt: skip
    return RunPlan(**{**fields, **changes})


def test_run_is_another_when_anything_of_it_differs() -> None:
    other_node = (NodePlan("ann", "m", {"learner": {"own_groups": 5}}),)
    changed = [plan(seed=1), plan(rounds=4), plan(nodes=other_node), plan(measure_prompts=9)]
    assert len({each.key for each in (plan(), *changed)}) == 5
    assert plan().key == plan().key


def test_result_is_found_by_its_plan_alone_and_a_half_written_one_is_not(tmp_path: Path) -> None:
    result = run(node([0.1], [5], {"a": 0.0}))
    half = result_path(tmp_path, plan(seed=1)).with_suffix(".1.part")
    save_result(tmp_path, plan(), result)
    half.write_text("{", encoding="utf-8")
    assert load_result(tmp_path, plan()) == result
    assert load_result(tmp_path, plan(seed=1)) is None
