"""What the comparison with others makes of its curves, and how it counts processor seconds."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import msgspec
import pytest

from scripts import REPOSITORY
from scripts.bench.common.process_usage import tree_cpu_seconds
from scripts.bench.skill.curves import Point, area, last_fifth, seconds_until, success_at
from scripts.bench.skill.page import PAGE
from scripts.bench.time_to_skill import (
    Compared,
    Planned,
    Run,
    figures_of,
    median_text,
    results_table,
    seconds_to_others_end,
    tuning_table,
)

CURVE = [Point(0.0, 0, 0, 0.1), Point(10.0, 1, 100, 0.3), Point(20.0, 2, 300, 0.5)]


def test_a_curve_is_linear_between_its_points_and_constant_after_them() -> None:
    assert [success_at(CURVE, at) for at in (0.0, 5.0, 15.0, 20.0, 99.0)] == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    assert success_at(CURVE, 200, lambda point: point.completions) == pytest.approx(0.4)


def test_the_area_counts_what_comes_after_the_last_point_and_nothing_after_the_time_allowed() -> None:
    assert area(CURVE, 20.0) == pytest.approx(0.3)
    assert area(CURVE, 40.0) == pytest.approx((0.3 * 20 + 0.5 * 20) / 40)
    assert area(CURVE, 10.0) == pytest.approx(0.2)
    assert area(CURVE[:1], 10.0) == pytest.approx(0.1)  # a contender that left nothing has what it began with


def test_a_goal_is_reached_between_two_points_or_never() -> None:
    assert seconds_until(CURVE, 0.4) == pytest.approx(15.0)
    assert seconds_until(CURVE, 0.1) == 0.0
    assert math.isinf(seconds_until(CURVE, 0.6))
    assert median_text([12.0, math.inf, 15.4]) == "15 (12 to never)"
    assert median_text([0.2349, 0.2351], 3) == "0.235"


def test_the_last_fifth_is_of_the_completions_that_both_had() -> None:
    assert last_fifth(CURVE, 300) == pytest.approx(0.47)  # from 240, where it is .44, to 300, where it is .5


def a_run(contender: str, seed: int, factor: float, *, rate: float | None = None, error: str = "") -> Run:
    points = [Point(p.seconds * factor, p.steps, p.completions, p.success) for p in CURVE]
    return Run(contender, "wren", rate, None if rate is None else 64, seed, 20.0, 1.0, points, error)


def test_ours_is_held_against_the_better_contender() -> None:
    runs = {
        "starling": [a_run("starling", seed, factor) for seed, factor in enumerate((1.0, 1.5, 0.5))],
        "trl": [a_run("trl", seed, 5.0, rate=1e-3) for seed in range(3)],
        "genrl": [a_run("genrl", seed, 4.0, rate=1e-3) for seed in range(3)],
    }
    found = {figure.name: figure.value for figure in figures_of(Compared("wren", runs, {}), 100.0)}
    assert found["wren: until 0.4, against the better contender"] == pytest.approx(1 / 4)
    assert found["wren, trl: until 0.5"] == pytest.approx(100.0)
    assert found["wren: until the success that the better contender ends with"] == pytest.approx(20 / 100)
    assert found["wren: until the success that the better contender ends with, slowest seed"] == pytest.approx(0.3)
    assert found["wren: last fifth at equal completions, less TRL's"] == pytest.approx(0.0)
    assert len(results_table(Compared("wren", runs, {}), 100.0).splitlines()) == 2 + len(runs)


def test_others_that_end_no_better_than_they_began_are_not_caught_up_with() -> None:
    fallen = Run("trl", "wren", 1e-3, 64, 0, 20.0, 1.0, [CURVE[1], CURVE[0]])
    ours = a_run("starling", 0, 1.0)
    assert seconds_to_others_end(Compared("wren", {"starling": [ours], "trl": [fallen]}, {})) == []
    better = Run("trl", "wren", 1e-3, 64, 0, 20.0, 1.0, [CURVE[0], Point(20.0, 2, 300, 0.6)])
    assert seconds_to_others_end(Compared("wren", {"starling": [ours], "trl": [better]}, {})) == [math.inf]


def test_what_others_end_with_is_caught_up_with_seed_by_seed() -> None:
    theirs = [Run("trl", "wren", 1e-3, 64, seed, 20.0, 1.0, [CURVE[0], CURVE[seed]]) for seed in (1, 2)]
    ours = [a_run("starling", seed, 1.0) for seed in (1, 2)]
    assert seconds_to_others_end(Compared("wren", {"starling": ours, "trl": theirs}, {})) == [10.0, 20.0]


def test_an_error_of_a_contender_stands_in_the_table_of_what_was_tried() -> None:
    tried = [
        Run("genrl", "wren", rate, batch, 0, 20.0, 1.0, CURVE, "exit status 1: no such thing" if batch == 64 else "")
        for rate in (1e-4, 3e-4, 1e-3)
        for batch in (64, 128, 256)
    ]
    assert tuning_table(Compared("wren", {}, {"genrl": tried}), 20.0).count("no such thing") == 3


def test_runs_of_other_settings_have_other_files() -> None:
    plans = {Planned("trl", "wren", 1e-3, 64, seed, seconds, 1).path for seed in (0, 1) for seconds in (20.0, 30.0)}
    assert len(plans) == 4


def test_the_readmes_comparison_is_of_the_runs_that_the_page_is_written_from() -> None:
    ends: dict[str, list[str]] = {"starling": [], "trl": []}
    for model in ("wren", "robin", "finch"):
        file = PAGE.with_name(f"against-{model}-1200.json")
        runs = msgspec.json.decode(file.read_bytes(), type=dict[str, list[Run]])
        found = {figure.name: figure.value for figure in figures_of(Compared(model, runs, {}), 1200.0)}
        for contender, of_each in ends.items():
            of_each.append(f"{found[f'{model}, {contender}: at the end']:.2f}")
    ours, theirs = ("{}, {} and {}".format(*of_each) for of_each in ends.values())
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    assert f"success of wren, robin and finch comes to {ours}; with TRL, tuned, to {theirs} (" in readme


def test_processor_seconds_of_a_tree_count_children_that_live_and_that_have_ended() -> None:
    before = tree_cpu_seconds(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    subprocess.run([sys.executable, "-c", burn], check=True)
    ended = tree_cpu_seconds(os.getpid())
    assert ended - before > 0.25
    lives = [sys.executable, "-c", f"{burn}print(flush=True); input()"]
    with subprocess.Popen(lives, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_cpu_seconds(os.getpid()) - ended > 0.25
        assert tree_cpu_seconds(child.pid) > 0.25
