"""What the comparison of swarms makes of its runs, and of the page that it writes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from scripts.bench.contenders.genrl_swarm import Group, rewarded
from scripts.bench.skill.curves import Point
from scripts.bench.skill.models import MODELS
from scripts.bench.skill.page import write_section
from scripts.bench.skill.runs import OURS
from scripts.bench.swarm_to_skill import THEIRS, Planned, SwarmRun, figures_of, results


def a_run(contender: str, seed: int, gained: float, errors: list[str] | None = None) -> SwarmRun:
    curve = [Point(0.0, 0, 0, 0.1), Point(50.0, 5, 100, 0.1 + gained / 2), Point(100.0, 10, 200, 0.1 + gained)]
    rate, batch = (None, None) if contender == OURS else (1e-4, 256)
    nodes = dict.fromkeys(MODELS, curve)
    return SwarmRun(contender, rate, batch, seed, 100.0, 2.0, 3_000_000, 40, nodes, errors or [])


def test_what_each_swarm_gained_is_compared_and_only_where_the_other_gained_anything() -> None:
    ours = [a_run(OURS, 0, 0.2), a_run(OURS, 1, 0.4)]
    found = {f.name: f.value for f in figures_of({OURS: ours, THEIRS: [a_run(THEIRS, seed, 0.1) for seed in (0, 1)]})}
    assert found["starling: success gained by three nodes"] == pytest.approx(0.3)
    assert found["starling: bytes on loopback"] == pytest.approx(3.0)
    assert found["success gained, against the other"] == pytest.approx(3.0)
    names = [figure.name for figure in figures_of({OURS: ours, THEIRS: [a_run(THEIRS, 0, -0.1)]})]
    assert "success gained, against the other" not in names


def test_a_swarm_has_the_mean_of_its_nodes() -> None:
    run = a_run(OURS, 0, 0.2)
    run.nodes["finch"] = [Point(0.0, 0, 0, 0.4)]
    assert run.success_at(100.0) == pytest.approx((0.3 + 0.3 + 0.4) / 3)
    assert run.gained == pytest.approx(0.4 / 3)
    assert run.completions == 400


def test_the_page_has_a_row_of_each_swarm_and_what_was_tried_with_its_errors() -> None:
    options = Namespace(rates=[1e-5, 1e-4], batches=[256], seeds=1, seconds=100.0, tune_seconds=90.0)
    tried = [a_run(THEIRS, 1000, 0.1), a_run(THEIRS, 1000, 0.0, ["finch: exit status 1: no such thing"])]
    text = results({OURS: [a_run(OURS, 0, 0.2)], THEIRS: [a_run(THEIRS, 0, 0.1)]}, tried, options)
    assert "| starling | as shipped | 0 | 0.100 | 0.300 | 0.200 |" in text
    assert "| genrl | 0.0001 | 256 | 0.150 |" in text
    assert "no such thing" in text
    assert "--rates 1e-05,0.0001 --batches 256 --seeds 1 --seconds 100 --tune-seconds 90" in text


def test_a_section_takes_the_place_of_the_one_with_its_title_and_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nWords.\n")
    write_section("Results", "one", page)
    write_section("A swarm", "two\n\n### of it", page)
    assert page.read_text() == "# Title\n\nWords.\n\n## Results\n\none\n\n## A swarm\n\ntwo\n\n### of it\n"
    write_section("Results", "three", page)
    assert page.read_text() == "# Title\n\nWords.\n\n## Results\n\nthree\n\n## A swarm\n\ntwo\n\n### of it\n"
    write_section("A swarm", "four", page)
    assert page.read_text() == "# Title\n\nWords.\n\n## Results\n\nthree\n\n## A swarm\n\nfour\n"


def test_groups_of_a_swarm_have_their_own_rewards_in_their_order() -> None:
    groups = [Group("echo", 1, "q", ["a", "bb"]), Group("add", 2, "r", ["ccc"])]
    found = rewarded(groups, lambda items: [float(len(text)) for _, _, text in items])
    assert [each.rewards for each in found] == [[1.0, 2.0], [3.0]]
    assert [(each.task, each.answers) for each in found] == [("echo", ["a", "bb"]), ("add", ["ccc"])]


def test_runs_of_other_settings_have_other_files() -> None:
    plans = {Planned(THEIRS, 1e-4, 256, seed, seconds).path for seed in (0, 1) for seconds in (20.0, 30.0)}
    assert len(plans) == 4
