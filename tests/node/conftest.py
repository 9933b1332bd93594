"""What the tests of the node share: the command, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node.cli import main as cli


@pytest.fixture
def starling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command with a data directory of its own. Returns exit code, standard output, standard error."""
    monkeypatch.setenv("STARLING_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["starling", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run
