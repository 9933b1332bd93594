"""``starling eval``: the newest checkpoint, the same figures each time, and no mixing of models."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from node.cli import main as cli
from node.compute_environment import COMPUTE_DEFAULTS
from tests.processes.conftest import STARLING

pytestmark = pytest.mark.processes


def test_an_evaluation_is_of_the_newest_checkpoint_repeatable_and_refuses_another_model(
    processes: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = processes.up("--rounds", "2")
    assert node.end() == 0
    asked = ("eval", "--home", str(node.home), "--prompts", "8")
    both = [processes.start(*STARLING, *asked, "--json") for _ in range(2)]
    first, second = (json.loads(each.ended().stdout) for each in both)
    assert first == second
    assert first["round"] == 2 and first["checkpoint"].endswith("round-000002")
    assert len(first["greedy"]) >= 6 and set(first["greedy"]) == set(first["sampled"])
    assert all(0.0 <= reward <= 1.0 for reward in (*first["greedy"].values(), *first["sampled"].values()))
    assert max(first["sampled"].values()) > 0.0
    assert processes.none_alive()

    for variable, value in COMPUTE_DEFAULTS.items():
        monkeypatch.setenv(variable, value)  # the verb sets them, and they shall not outlive this test
    monkeypatch.setattr(sys, "argv", ["starling", *asked, "--model", "builtin:robin"])
    with pytest.raises(SystemExit) as refused:
        cli.main()
    assert refused.value.code == 78 and "another family" in capsys.readouterr().err
