"""``starling eval``: the newest checkpoint, the same figures each time, and no mixing of models.

The second evaluation and the refused one run in the test's own process, which has torch already.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.cli import main as cli
from node.compute_environment import COMPUTE_DEFAULTS
from node.evaluation.evaluation_result import PROGRESS, Evaluation
from tests.processes.conftest import STARLING

pytestmark = pytest.mark.processes


def test_an_evaluation_is_of_the_newest_checkpoint_repeatable_and_refuses_another_model(
    processes: Any, trained_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = shutil.copytree(trained_home, processes.root / "home")
    asked = ("eval", "--home", str(home), "--prompts", "4")
    ended = processes.start(*STARLING, *asked, "--json").ended()
    assert ended.returncode == 0, ended.stderr
    first = msgspec.json.decode(ended.stdout, type=Evaluation)
    assert first.round == 2 and first.checkpoint is not None and first.checkpoint.endswith("round-000002")
    assert len(first.greedy) >= 6 and set(first.greedy) == set(first.sampled)
    assert all(0.0 <= reward <= 1.0 for reward in (*first.greedy.values(), *first.sampled.values()))
    assert max(first.sampled.values()) > 0.0
    progress = [found.groups() for line in ended.stderr.splitlines() if (found := re.fullmatch(PROGRESS, line))]
    assert progress[0][0] == "0" and progress[-1][0] == progress[-1][1]  # as the demonstration reads it
    assert processes.none_alive()

    for variable, value in COMPUTE_DEFAULTS.items():
        monkeypatch.setenv(variable, value)  # the verb sets them, and they shall not outlive this test
    monkeypatch.setattr(sys, "argv", ["starling", *asked, "--json"])
    with pytest.raises(SystemExit) as ended_here:
        cli.main()
    assert ended_here.value.code == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Evaluation) == first
    monkeypatch.setattr(sys, "argv", ["starling", *asked, "--model", "builtin:robin"])
    with pytest.raises(SystemExit) as refused:
        cli.main()
    assert refused.value.code == 78 and "another family" in capsys.readouterr().err
