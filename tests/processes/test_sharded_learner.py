"""A node whose learner is two processes, each with half of the weights: it learns, and loses one of them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.processes

IN_SHARDS = (
    "--set", "learner.devices=2", "--set", "learner.own_groups=4", "--set", "checkpoint.every_rounds=1",
    "--set", "evaluation.every_rounds=2", "--set", "evaluation.prompts=1",
)  # fmt: skip


def device_of(processes: Any) -> int:
    """The process of the other device."""
    [found] = [pid for pid, command in processes.alive().items() if "device_process" in command]
    return int(found)


def test_one_process_of_a_learner_in_shards_is_killed_and_all_begin_again_from_the_checkpoint(processes: Any) -> None:
    node = processes.up(*IN_SHARDS)
    planned = node.wait_for_event("planned")
    assert planned["recompute"] and planned["optimizer"] == "adamw"
    assert node.wait_for_event("engine")["backend"] == "process"
    node.wait_for(lambda e: e["event"] == "evaluated" and e["round"] == 2)
    saved = node.wait_for(lambda e: e["event"] == "checkpoint" and e["round"] >= 2)["round"]
    device, said_before = device_of(processes), len(node.events)

    os.kill(device, signal.SIGKILL)
    fault = node.wait_for_event("fault", after=said_before)
    assert fault["fatal"] and "device 1 ended with signal 9" in fault["detail"]
    again = node.wait_for_event("ready", after=said_before)
    assert again["round"] >= saved and again["checkpoint"]
    node.wait_for_round(again["round"] + 2, after=said_before)
    assert device_of(processes) != device

    assert node.interrupt() == 0
    assert node.of_kind("checkpoint")[-1]["round"] == node.of_kind("round")[-1]["round"]
    assert processes.none_alive()
