"""``starling report`` of one data directory and of two."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from node.checkpoints.checkpoint_files import CONFIG
from node.cli.main import app
from node.cli.verbs.report import distinct_names
from node.home import Home
from protocol.errors import ConfigurationError
from tests.factories import round_done


def home(path: Path, reward: float) -> Path:
    path.mkdir(parents=True)
    rounds = [round_done(n, reward_by_task={"add": reward}) for n in range(1, 6)]
    (path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rounds))
    return path


def ran(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_two_directories_are_shown_side_by_side_with_a_verdict(tmp_path: Path) -> None:
    page = tmp_path / "both.html"
    result = ran(home(tmp_path / "alone", 0.2), home(tmp_path / "together", 0.6), "--html", page)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["alone", "together"]
    assert any(line.split() == ["add", "0.200", "→", "0.200", "0.600", "→", "0.600"] for line in lines)
    assert any(line.startswith("together ends higher by 0.400 of mean reward over the 1 task") for line in lines)
    assert "together" in page.read_text() and "0.60" in page.read_text()


def test_a_comparison_and_a_report_are_json_for_programs(tmp_path: Path) -> None:
    one, other = home(tmp_path / "one", 0.2), home(tmp_path / "other", 0.6)
    both = json.loads(ran(one, other, "--json").stdout)
    assert both["names"] == ["one", "other"] and both["b"]["rounds"] == 5
    assert json.loads(ran(one, "--json").stdout) == json.loads(ran("--home", one, "--json").stdout)


def test_three_directories_one_beside_home_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    one = home(tmp_path / "one", 0.2)
    for words in ((one, one, one), (one, "--home", one), (one, tmp_path / "none")):
        result = ran(*words)
        assert isinstance(result.exception, ConfigurationError), words
    assert "no data directory" in str(ran(one, tmp_path / "none").exception)


def test_runs_have_the_names_of_their_nodes(tmp_path: Path) -> None:
    for folder, name in (("a", "ann"), ("b", "bob")):
        checkpoint = tmp_path / folder / "checkpoints" / "round-000007"
        checkpoint.mkdir(parents=True)
        (checkpoint / CONFIG).write_text(json.dumps({"name": name, "policy": {"model": "builtin:wren"}}))
    assert distinct_names(Home(tmp_path / "a"), Home(tmp_path / "b")) == ("ann", "bob")
    assert distinct_names(Home(tmp_path / "a"), Home(tmp_path / "a")) == (str(tmp_path / "a"),) * 2


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [("/a/x", "/b/y", ("x", "y")), ("/a/home", "/b/home", ("/a/home", "/b/home"))],
)
def test_runs_of_equal_folder_names_are_told_apart_by_their_paths(
    first: str, second: str, names: tuple[str, str]
) -> None:
    assert distinct_names(Home(Path(first)), Home(Path(second))) == names
