"""A run over the band of seeded runs, as lines, as a page, and by the verb."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from node.cli.main import app
from node.events import encode_event
from node.report.expected_curves import ExpectedCurve, against, against_lines, bands, expected_curve, expected_names
from node.report.expected_page import against_page
from node.report.facts import RunFacts, run_facts
from protocol.errors import ConfigurationError
from tests.factories import round_done

CURVE = ExpectedCurve(
    "owl", "a command", "abc1234", "2026-01-02", 5, ((0.2, 0.4), (0.3, 0.5)), {"add": ((0.2, 0.4), (0.3, 0.5))}
)


def recorded(home: Path, rewards: list[float]) -> Path:
    home.mkdir(parents=True)
    rounds = (
        round_done(number, reward=reward, reward_by_task={"add": reward}, success_by_task={"add": reward})
        for number, reward in enumerate(rewards, 1)
    )
    (home / "metrics.jsonl").write_bytes(b"".join(encode_event(each) + b"\n" for each in rounds))
    return home


def facts(home: Path, rewards: list[float]) -> RunFacts:
    return run_facts(recorded(home, rewards) / "metrics.jsonl")


def ran(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_band_is_two_deviations_of_a_new_seed_around_the_mean() -> None:
    one, other = bands(CURVE.runs)
    half = 2 * math.sqrt(statistics.variance((0.2, 0.3)) * 1.5)
    assert (one.low, one.mean, one.high) == pytest.approx((0.25 - half, 0.25, 0.25 + half))
    assert other.mean == pytest.approx(0.45)
    [only] = bands([(0.5,)])
    assert only.low == only.mean == only.high == 0.5
    assert bands([(0.0,), (0.1,)])[0].low == 0.0


def test_only_whole_windows_count_and_one_outside_is_named(tmp_path: Path) -> None:
    found = against(facts(tmp_path / "run", [0.25] * 5 + [0.9] * 5 + [0.0] * 3), CURVE)
    assert [(each.first_round, each.last_round, each.side) for each in found.windows] == [(1, 5, 0), (6, 10, 1)]
    assert found.tasks["add"].reward == pytest.approx(0.9)
    assert "above the band of 2 seeds" in found.sentence and "1 of 2 windows" in found.sentence
    assert sum(line.endswith(", above it") for line in against_lines(found)) == 2


def test_run_that_is_too_short_says_so_and_one_of_other_tasks_too(tmp_path: Path) -> None:
    assert "this run has 3" in against(facts(tmp_path / "short", [0.2] * 3), CURVE).sentence
    other = ExpectedCurve("owl", "", "", "", 5, CURVE.runs, {"sort": CURVE.runs})
    assert "other tasks" in against(facts(tmp_path / "other", [0.25] * 5), other).sentence


def test_page_has_the_run_and_the_three_lines_of_the_band(tmp_path: Path) -> None:
    page = against_page(against(facts(tmp_path / "run", [0.3] * 10), CURVE), name="<b>")
    assert "<b>:" not in page
    drawn = json.loads(page.partition('id="facts">')[2].partition("</script>")[0])["charts"]["chart-mean"]["lines"]
    assert [line["x"] for line in drawn] == [[5, 10]] * 4
    assert drawn[0]["values"] == pytest.approx([0.3, 0.3])


def test_every_curve_that_ships_is_named_as_its_file_and_rises() -> None:
    assert set(expected_names()) == {"wren", "robin", "finch"}
    for name in expected_names():
        curve = expected_curve(name)
        assert curve.expected == name and len(curve.runs) >= 3
        assert {len(run) for runs in (curve.runs, *curve.tasks.values()) for run in runs} == {len(curve.runs[0])}
        band = bands(curve.runs)
        assert band[-1].mean > band[0].mean


def test_verb_compares_with_a_curve_a_directory_and_the_json_of_a_report(tmp_path: Path) -> None:
    home, page = recorded(tmp_path / "run", [0.15] * 40), tmp_path / "page.html"
    result = ran("--home", home, "--against", "expected:robin", "--html", page)
    assert result.exit_code == 0 and "1 to 10" in result.stdout and page.exists()
    other = recorded(tmp_path / "other", [0.75] * 40)
    assert ran("--home", home, "--against", other).stdout == ran(home, other).stdout
    kept = tmp_path / "other.json"
    kept.write_text(ran("--home", other, "--json").stdout)
    both = json.loads(ran("--home", home, "--against", kept, "--json").stdout)
    assert both["names"] == ["run", "other.json"] and both["b"]["rounds"] == 40


@pytest.mark.parametrize("what", ["expected:owl", "nowhere.json"])
def test_what_is_nothing_to_compare_with_is_refused_with_what_is(tmp_path: Path, what: str) -> None:
    home = recorded(tmp_path / "run", [0.5] * 5)
    result = ran("--home", home, "--against", what)
    assert isinstance(result.exception, ConfigurationError) and "expected:" in str(result.exception)
