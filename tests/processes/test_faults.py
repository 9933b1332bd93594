"""What breaks in the middle of a round, and what the node does about it. Nothing is orphaned or lost."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any

import pytest

pytestmark = pytest.mark.processes

OFTEN = ("--set", "checkpoint.every_rounds=2")


def test_a_killed_learner_is_started_again_from_its_checkpoint_and_the_reason_is_told(processes: Any) -> None:
    node = processes.up(*OFTEN)
    saved = node.wait_for_event("checkpoint")["round"]
    node.wait_for_round(saved + 1)
    status = json.loads(processes.run("status", "--home", str(node.home), "--json").stdout)
    said_before = len(node.events)
    os.kill(status["learner_process"]["pid"], signal.SIGKILL)
    told = node.wait_for_note("learner was killed")["text"]
    assert "signal 9" in told and "out of memory" in told
    again = node.wait_for_event("ready", after=said_before)
    assert again["round"] >= saved and again["checkpoint"]
    node.wait_for_round(again["round"] + 1, after=said_before)
    checked = processes.run("status", "--home", str(node.home), "--check")
    assert (checked.returncode, checked.stdout) == (0, "healthy: training\n")
    after = json.loads(processes.run("status", "--home", str(node.home), "--json").stdout)
    assert after["learner_process"]["restarts"] == 1 and after["swarm_process"]["restarts"] == 0
    assert node.stop() == 0
    assert processes.none_alive()


def test_a_killed_swarm_process_is_started_again_with_its_identity_while_the_learner_trains_on(processes: Any) -> None:
    node = processes.up()
    peer = node.wait_for_event("node")["peer"]
    node.wait_for_round(1)
    status = json.loads(processes.run("status", "--home", str(node.home), "--json").stdout)
    said_before = len(node.events)
    os.kill(status["swarm_process"]["pid"], signal.SIGKILL)
    node.wait_for_note("swarm was killed")
    assert node.wait_for_event("node", after=said_before)["peer"] == peer  # it listens again, elsewhere
    node.wait_for_round(node.of_kind("round")[-1]["round"] + 1)
    after = json.loads(processes.run("status", "--home", str(node.home), "--json").stdout)
    assert after["learner_process"]["pid"] == status["learner_process"]["pid"]
    assert after["swarm_process"]["restarts"] == 1 and after["peer"] == peer
    assert node.stop() == 0
    assert processes.none_alive()


def test_a_killed_supervisor_leaves_no_process_and_the_next_start_continues(processes: Any) -> None:
    node = processes.up(*OFTEN)
    saved = node.wait_for_event("checkpoint")["round"]
    node.wait_for_round(saved + 1)
    node.process.kill()
    second = processes.up("--rounds", "1")  # at once: it waits for what is still ending
    assert second.end() == 0
    assert second.wait_for_event("ready")["round"] >= saved
    assert processes.none_alive()


def test_a_port_in_use_is_told_with_its_address_and_ends_the_node(processes: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = processes.up(
            "--set", f"swarm.listen=/ip4/127.0.0.1/tcp/{port}", "--listen", f"/ip4/127.0.0.1/tcp/{port}"
        )
        assert node.end() == 69
    assert str(port) in node.events[-1]["because"]
    assert processes.none_alive()


def test_an_unknown_model_ends_the_node_with_78_and_names_the_known_ones(processes: Any) -> None:
    node = processes.up("--model", "builtin:albatross")
    assert node.end() == 78
    assert "albatross" in node.events[-1]["because"] and "wren" in node.events[-1]["because"]
    assert processes.none_alive()


def test_a_checkpoint_that_cannot_be_written_is_told_and_training_goes_on(processes: Any) -> None:
    node = processes.up(*OFTEN, max_file_bytes=1 << 20)
    fault = node.wait_for_event("fault")
    assert fault["kind"] == "checkpoint" and not fault["fatal"] and "space" in fault["detail"]
    node.wait_for_round(fault["round"] + 2)
    assert node.stop() == 0
    assert list((node.home / "checkpoints").glob("round-*")) == []
    assert processes.none_alive()


def test_a_second_signal_ends_everything_at_once(processes: Any) -> None:
    node = processes.up()
    node.wait_for_event("loading")  # still importing: it cannot end in order yet
    node.process.send_signal(signal.SIGTERM)
    node.wait_for_note("Stopping")
    node.process.send_signal(signal.SIGTERM)
    assert node.end() == 130
    assert processes.none_alive()
