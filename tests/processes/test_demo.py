"""``starling demo``, small: it measures, learns together and alone, reports, and nothing of it stays.

A stand-in evaluates: what an evaluation finds, and what it writes for the demonstration to read, is the subject of
``test_eval``. In the first two, nodes, learners and swarm processes are the real ones.
"""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from tests.hang_guard import HANG_SECONDS
from tests.processes.conftest import with_stand_ins

pytestmark = pytest.mark.processes

MODELS = ("demo", "--models", "builtin:wren,builtin:robin")


def test_the_demonstration_compares_together_with_alone_on_equal_budgets_and_cleans_up(processes: Any) -> None:
    file = processes.root / "demo.json"
    flags = ("--tokens", "1000", "--set", "learner.own_groups=8", "--prompts", "2", "--json", str(file))
    ended = processes.run(*MODELS, *flags, stand_ins="evaluation")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(file.read_text())
    assert [result["model"] for result in report["models"]] == ["builtin:wren", "builtin:robin"]
    for result in report["models"]:
        alone, together = result["effort_alone"], result["effort_together"]
        assert together["foreign_groups_used"] > 0 and alone["foreign_groups_used"] == 0
        assert together["sent_bytes"] > 0 and together["received_bytes"] > 0 and alone["sent_bytes"] == 0
        assert alone["tokens_generated"] >= together["tokens_generated"] > 0
        assert alone["tokens_generated"] < together["tokens_generated"] + 8 * 4 * 16, (
            "it stops with the round that fills it"
        )
        assert result["before"]["round"] == 0
        assert result["together"]["round"] == together["rounds"] and result["alone"]["round"] == alone["rounds"]
        assert set(result["before"]["sampled"]) == set(result["together"]["greedy"])
    assert set(report["better_together"]) == {"builtin:wren", "builtin:robin"}
    assert "weak before" in ended.stdout and "foreign used" in ended.stdout
    assert processes.none_alive()
    assert list(processes.root.glob("starling-demo-*")) == []


def test_the_demonstration_of_a_family_averages_weights_and_shows_their_agreement(processes: Any) -> None:
    file = processes.root / "demo.json"
    small = (
        "--tokens", "2000", "--set", "averaging.every_rounds=2",
        "--set", "learner.own_groups=4", "--set", "swarm.heartbeat_seconds=1",
    )  # fmt: skip
    flags = ("--family", "--models", "builtin:wren,builtin:wren", *small, "--json", str(file))
    ended = processes.run("demo", *flags, stand_ins="evaluation")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(file.read_text())
    assert [node["label"] for node in report["nodes"]] == ["builtin:wren 1", "builtin:wren 2"]
    for node in report["nodes"]:
        assert node["outer_steps"] > 0 and node["weight_bytes"] > 0
        assert node["effort_alone"]["tokens_generated"] >= node["effort_together"]["tokens_generated"] > 0
    assert sum(moment["outer_steps"] for moment in report["moments"]) == sum(n["outer_steps"] for n in report["nodes"])
    assert report["distance_together"] > 0.0 and report["distance_alone"] > 0.0
    assert "replicas apart" in ended.stdout and "of their weights' norm apart" in ended.stdout
    assert processes.none_alive()
    assert list(processes.root.glob("starling-demo-*")) == []


def test_an_interrupted_demonstration_leaves_neither_processes_nor_files(processes: Any) -> None:
    demo = processes.start(
        *with_stand_ins("learner,evaluation"), *MODELS, "--minutes", "60",
        # As from a terminal: where the tests run in the background, what they start ignores Ctrl-C.
        at_its_start=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + HANG_SECONDS
    while not (metrics := list(processes.root.glob("starling-demo-*/together/1/metrics.jsonl"))) or (
        b'"round"' not in metrics[0].read_bytes()
    ):
        assert time.monotonic() < deadline, demo.last_words()
        time.sleep(0.05)
    assert demo.interrupt() == 130
    assert processes.none_alive()
    assert list(processes.root.glob("starling-demo-*")) == []
