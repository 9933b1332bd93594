"""Two real nodes of one model find each other, average their weights, and say so."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.processes

SMALL = (
    "--set", "learner.own_groups=2", "--set", "learner.completions=2", "--set", "learner.share_groups=0",
    "--set", "averaging.every_rounds=3", "--set", "tasks.names=basic_arithmetic", "--set", "swarm.heartbeat_seconds=1",
)  # fmt: skip


def averaged(event: dict[str, Any]) -> bool:
    return event["event"] == "averaged" and event["partner"] is not None


def test_two_nodes_of_one_model_average_with_each_other_and_status_and_peers_show_it(processes: Any) -> None:
    first = processes.up(*SMALL, "--set", "seed=1", home=processes.root / "a")
    node = first.wait_for_event("node")
    second = processes.up(*SMALL, "--set", "seed=2", "--peer", node["addresses"][0], home=processes.root / "b")
    other = second.wait_for_event("node")
    steps = first.wait_for(averaged), second.wait_for(averaged)
    assert [step["partner"] for step in steps] == [other["peer"], node["peer"]]
    for step in steps:
        assert step["outer_steps"] >= 1 and step["weight"] <= 1.0
        assert step["sent_bytes"] == step["received_bytes"] > 2 * 500_000  # two bytes a weight of builtin:wren
        assert step["encoding"] == "dense-bf16"
        assert 0.0 <= step["distance"] < 0.5
    status = processes.status(first)
    assert status["averaged"]["partner"] == other["peer"]
    assert f"weights averaged with {other['peer']}" in processes.run("status", "--home", str(first.home)).stdout
    (peer,) = processes.peers_once(first.home, lambda each: each["exchanges_committed"] > 0)
    assert peer["last_exchange"]["partner"] == other["peer"]
    assert peer["last_exchange"]["encoding"] == "dense-bf16"
    assert not first.of_kind("fault") and not second.of_kind("fault")
    assert first.stop() == second.stop() == 0
