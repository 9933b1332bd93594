"""Reading a node's log while it is written and rolled."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from typer.testing import CliRunner

from node.cli.main import app
from node.cli.verbs.logs import LogFollower, last_lines
from node.supervision.rolling_log import RollingLog


def test_the_last_lines_reach_back_into_the_older_half(tmp_path: Path) -> None:
    log = RollingLog(tmp_path / "node.log", max_bytes=200)
    for number in range(40):
        log.append(f"line {number:3}\n".encode())
    lines = last_lines(tmp_path / "node.log", 15)
    assert lines == [f"line {number:3}" for number in range(25, 40)]


def test_nothing_is_missed_where_the_log_is_rolled_while_it_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    log = RollingLog(path, max_bytes=1000)
    seen: list[str] = []
    with closing(LogFollower(path)) as follower:
        for number in range(300):
            log.append(f"line {number}\n".encode())
            if number % 20 == 0:
                seen += follower.new_lines()
        seen += follower.new_lines()
    assert seen == [f"line {number}" for number in range(300)]


def test_only_whole_lines_are_shown_and_what_was_there_before_is_not(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"old\n")
    with closing(LogFollower(path)) as follower, path.open("ab") as file:
        file.write(b"new\nhal")
        file.flush()
        assert list(follower.new_lines()) == ["new"]
        file.write(b"f\n")
        file.flush()
        assert list(follower.new_lines()) == ["half"]
    assert last_lines(path, 5, end=follower.position) == ["old"]


def test_a_line_moves_no_cursor(tmp_path: Path) -> None:
    (tmp_path / "node.log").write_bytes(b"a\x1b[2Jb\tc\xff\n")
    assert last_lines(tmp_path / "node.log", 1) == ["a\\x1b[2Jb    c�"]


def test_the_verb_shows_the_last_lines_and_says_where_there_are_none(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "node.log").write_text("one\ntwo\nthree\n")
    shown = CliRunner().invoke(app, ["logs", "-n", "2", "--home", str(tmp_path)])
    assert (shown.exit_code, shown.stdout) == (0, "two\nthree\n")
    missing = CliRunner().invoke(app, ["logs", "--of", "swarm", "--home", str(tmp_path)])
    assert "no node has run" in str(missing.exception)
