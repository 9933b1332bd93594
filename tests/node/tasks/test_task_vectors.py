"""Tasks and prompts as docs/protocol.md specifies them, made again from their vectors."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from node.tasks.registry import BUILT_IN_TASKS
from node.tasks.split import part_of
from protocol.messages import PromptRef
from scripts.make_vectors import FOLDER


def vectors(name: str) -> list[Any]:
    content: list[Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("vector", vectors("tasks"), ids=lambda v: v["task"])
def test_configuration_hash(vector: Any) -> None:
    task = BUILT_IN_TASKS[vector["task"]]
    assert hashlib.sha256(vector["configuration"].encode()).hexdigest()[:32] == vector["config_hash"]
    assert (task.version, task.config_hash.hex()) == (vector["version"], vector["config_hash"])


@pytest.mark.parametrize("vector", vectors("prompts"), ids=lambda v: f"{v['prompt']['task']} {v['prompt']['seed']}")
def test_prompt_and_rewards(vector: Any) -> None:
    ref = vector["prompt"]
    task = BUILT_IN_TASKS[ref["task"]]
    prompt = task.prompt(PromptRef(ref["task"], ref["version"], bytes.fromhex(ref["config_hash"]), ref["seed"]))
    assert (prompt.text, part_of(prompt), prompt.answer) == (vector["text"], vector["part"], vector["answer"])
    assert task.rewards(prompt, list(vector["rewards"])) == list(vector["rewards"].values())
    assert vector["rewards"][vector["answer"]] == 1.0
