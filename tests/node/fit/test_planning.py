"""What a plan is made from: the workload of a configuration, the checkpoint, the machine as asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.configuration import PolicySection, TasksSection
from node.fit.candidates import Trained
from node.fit.planning import as_trained, machine_here, sizes_of, trained_here
from node.fit.workload import workload_of
from node.home import Home
from node.policy.model_files import model_folder
from node.tasks.registry import load_tasks
from tests.node.fit.shapes import GB, config, sizes

QWEN = sizes("Qwen2.5-0.5B")


def test_lengths_are_those_of_the_tasks() -> None:
    tasks = load_tasks(TasksSection())
    found = workload_of(config(), tasks.values(), sizes_of(model_folder("builtin:wren")))
    assert found.answer_tokens == max(task.max_new_tokens for task in tasks.values())
    longest = max(len(task.prompt(task.ref(seed)).text) for task in tasks.values() for seed in range(32))
    assert found.prompt_tokens == longest  # a token of a small vocabulary is at most a byte
    assert workload_of(config(), tasks.values(), QWEN).prompt_tokens < longest + 64


@pytest.mark.parametrize(
    ("keys", "copies", "ahead", "reference"),
    [
        ({}, 0, False, False),
        ({"learner": {"max_staleness": 2}}, 2, True, False),
        ({"objective": {"research": {"weights_behind": 3}}}, 5, False, False),
        ({"engine": {"backend": "process"}}, 0, False, False),
        ({"engine": {"backend": "process"}, "learner": {"max_staleness": 2}}, 1, True, False),
        ({"objective": {"kl_weight": 0.1}}, 0, False, True),
    ],
)
def test_copies_of_the_weights_follow_from_the_objective(
    keys: dict[str, Any], copies: int, ahead: bool, reference: bool
) -> None:
    found = workload_of(config(**keys), (), QWEN)
    assert (found.engine_copies, found.generates_ahead, found.has_reference) == (copies, ahead, reference)


def checkpoint(home: Path, number: int, policy: Any) -> None:
    folder = home / "checkpoints" / f"round-{number:06d}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"policy": policy}))


def test_the_newest_checkpoint_says_what_is_trained(tmp_path: Path) -> None:
    assert trained_here(Home(tmp_path)) is None
    checkpoint(tmp_path, 1, {"adapter_rank": 8})  # of a version without 4-bit weights
    assert trained_here(Home(tmp_path)) == Trained(8, four_bit=False)
    checkpoint(tmp_path, 2, {"adapter_rank": "auto", "four_bit": "auto"})
    assert trained_here(Home(tmp_path)) == Trained(0, four_bit=False)
    checkpoint(tmp_path, 3, {"adapter_rank": 16, "four_bit": True})
    assert trained_here(Home(tmp_path)) == Trained(16, four_bit=True)
    checkpoint(tmp_path, 4, "damaged")
    assert trained_here(Home(tmp_path)) == Trained(16, four_bit=True)


def test_memory_as_asked_for_replaces_that_of_the_device(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert machine_here(home, "cpu", "float32", asked_bytes=3 * GB).host_bytes == 3 * GB
    on_gpu = machine_here(home, "cuda", "bfloat16", 80 * GB, asked_bytes=8 * GB)
    assert on_gpu.usable_device_bytes == 8 * GB
    assert on_gpu.host_bytes == machine_here(home, "cpu", "float32").host_bytes


def test_what_is_left_open_is_read_as_the_checkpoint_was_trained_and_what_is_set_is_kept() -> None:
    trained = Trained(16, four_bit=True)
    assert as_trained(PolicySection(), trained) == PolicySection(adapter_rank=16, four_bit=True)
    assert as_trained(PolicySection(adapter_rank=0, four_bit=False), trained).adapter_rank == 0
