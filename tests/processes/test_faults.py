"""What breaks in the middle of a round, and what the node does about it. Nothing is orphaned or lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

OFTEN = ("--set", "checkpoint.every_rounds=2")


def test_a_killed_process_of_a_node_is_started_again_told_why_and_leaves_the_other_alone(processes: Any) -> None:
    node = processes.up(*OFTEN)
    announced = node.wait_for_event("node")
    peer = announced["peer"]
    saved = node.wait_for_event("checkpoint")["round"]
    node.wait_for_round(saved + 1)
    status = processes.status(node)

    os.kill(status["swarm_process"]["pid"], signal.SIGKILL)
    node.wait_for_note("swarm was killed")
    while (after := processes.status(node))["swarm_process"]["pid"] in (None, status["swarm_process"]["pid"]):
        node.wait_for_round(node.of_kind("round")[-1]["round"] + 1)
    assert [each["addresses"] for each in node.of_kind("node")] == [
        announced["addresses"]
    ]  # the same port, so told once
    assert after["learner_process"]["pid"] == status["learner_process"]["pid"]
    assert after["swarm_process"]["restarts"] == 1 and after["peer"] == peer

    said_before = len(node.events)
    os.kill(status["learner_process"]["pid"], signal.SIGKILL)
    told = node.wait_for_note("learner was killed")["text"]
    assert "signal 9" in told and "out of memory" in told
    again = node.wait_for_event("ready", after=said_before)
    assert again["round"] >= saved and again["checkpoint"]
    node.wait_for_round(again["round"] + 1, after=said_before)
    checked = processes.run("status", "--home", str(node.home), "--check")
    assert (checked.returncode, checked.stdout) == (0, "healthy: training\n")
    after = processes.status(node)
    assert after["learner_process"]["restarts"] == 1 and after["swarm_process"]["restarts"] == 1

    assert node.interrupt() == 0  # the supervisor alone answers Ctrl-C, and ends all in order
    assert node.of_kind("stopped") and node.of_kind("checkpoint")[-1]["round"] == node.of_kind("round")[-1]["round"]
    assert processes.none_alive()


def test_a_killed_supervisor_leaves_no_process_and_the_next_start_continues(processes: Any) -> None:
    # What the real learner does then: tests/node/learner/test_learner_process.py
    node = processes.up(*OFTEN, torch=False)
    saved = node.wait_for_event("checkpoint")["round"]
    node.wait_for_round(saved + 1)
    node.process.kill()
    second = processes.up(torch=False)  # at once: it waits for what is still ending
    assert second.wait_for_event("ready")["round"] >= saved
    second.wait_for_round(saved + 2)
    assert second.stop() == 0
    assert processes.none_alive()


def test_a_port_in_use_is_told_with_its_address_and_ends_the_node(processes: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = processes.up(
            "--set", f"swarm.listen=/ip4/127.0.0.1/tcp/{port}", "--listen", f"/ip4/127.0.0.1/tcp/{port}", torch=False
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
    node = processes.up(*OFTEN, "--set", "checkpoint.wait_for_room_seconds=0", max_file_bytes=1 << 20)
    fault = node.wait_for_event("fault")
    assert fault["kind"] == "checkpoint" and not fault["fatal"] and "space" in fault["detail"]
    node.wait_for_round(fault["round"] + 2)
    not_saved = processes.status(node)["not_saved"]
    assert not_saved["saved_round"] == 0 and not_saved["round"] >= fault["round"]
    said = processes.run("status", "--home", str(node.home)).stdout
    assert "NOT SAVED: rounds 1 to" in said and "there is no checkpoint" in said
    down = processes.run("down", "--home", str(node.home))
    assert down.returncode == node.end() == 74, "what was learnt is lost: that is no success"
    assert "were never saved (there is no checkpoint)" in down.stdout
    lost, done = node.of_kind("stopped")[-1]["lost"], node.of_kind("round")[-1]["round"]
    assert (lost["saved_round"], lost["round"]) == (0, done)
    assert f"rounds 1 to {done} were never saved" in node.events[-1]["because"]
    assert list((node.home / "checkpoints").glob("round-*")) == []
    assert processes.none_alive()


def test_a_run_that_did_its_rounds_and_could_not_save_the_last_names_what_is_lost(
    processes: Any, trained_home: Path
) -> None:
    shutil.copytree(trained_home, processes.root / "home")
    full = ("--set", "checkpoint.wait_for_room_seconds=0")
    node = processes.up("--rounds", "1", *full, max_file_bytes=1 << 20)
    assert node.end() == 74
    assert "round 3 was never saved (the last checkpoint is of round 2)" in node.events[-1]["because"]
    assert processes.none_alive()


def test_a_node_that_is_still_loading_ends_when_asked(processes: Any) -> None:
    node = processes.up()
    node.wait_for_event("loading")
    assert node.stop() == 0
    assert not node.of_kind("fault") and not node.of_kind("round")
    assert processes.none_alive()


def test_a_node_under_nohup_goes_on_after_a_hang_up(processes: Any) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child inherits it
    try:
        node = processes.up(torch=False)
    finally:
        signal.signal(signal.SIGHUP, before)
    round_number = node.wait_for_round(1)["round"]
    node.process.send_signal(signal.SIGHUP)
    node.wait_for_round(round_number + 3)
    assert node.stop() == 0
    assert not any("SIGHUP" in note["text"] for note in node.of_kind("note"))


def test_ctrl_c_after_a_signal_ends_everything_at_once(processes: Any) -> None:
    node = processes.up(torch=False)
    node.wait_for_round(1)
    os.kill(processes.status(node)["learner_process"]["pid"], signal.SIGSTOP)  # it cannot end in order
    node.process.send_signal(signal.SIGTERM)
    node.wait_for_note("Stopping")
    node.process.send_signal(signal.SIGINT)
    assert node.end() == 130
    assert processes.none_alive()
