"""``starling eval``: the newest checkpoint, the same figures each time, and no mixing of models."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.processes


def test_an_evaluation_is_of_the_newest_checkpoint_repeatable_and_refuses_another_model(processes: Any) -> None:
    node = processes.up("--rounds", "2")
    assert node.end() == 0
    asked = ("eval", "--home", str(node.home), "--prompts", "8")
    first, second = (json.loads(processes.run(*asked, "--json").stdout) for _ in range(2))
    assert first == second
    assert first["round"] == 2 and first["checkpoint"].endswith("round-000002")
    assert len(first["greedy"]) >= 6 and set(first["greedy"]) == set(first["sampled"])
    assert all(0.0 <= reward <= 1.0 for reward in (*first["greedy"].values(), *first["sampled"].values()))
    assert max(first["sampled"].values()) > 0.0
    other = processes.run(*asked, "--model", "builtin:robin")
    assert other.returncode == 78 and "another family" in other.stderr
    assert processes.none_alive()
