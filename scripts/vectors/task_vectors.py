"""Tasks of the default swarm: the text of which a configuration's hash is made, and prompts by their seeds."""

from __future__ import annotations

from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.reasoning_sets import SAPO_TASKS
from node.tasks.registry import default_manifest_tasks
from node.tasks.split import part_of
from node.tasks.task import SPLIT, canonical_json
from protocol.manifest import Manifest
from scripts.vectors.plain_values import Json, plain

PROMPT_SEEDS = (0, 1, 2, 3, 17, 2**31 - 1)
WRONG = ("", "?", "0x", " 1")


def tasks() -> list[Json]:
    """The default swarm's tasks and two with worded questions, as entries of a manifest and as they are configured."""
    return [
        {
            "task": task.name,
            "version": task.version,
            "seeds": task.seeds,
            "max_new_tokens": task.max_new_tokens,
            "configuration": canonical_json({**task.shape, "split": SPLIT}),
            "config_hash": task.config_hash.hex(),
        }
        for task in (*DEFAULT_TASKS, *SAPO_TASKS[:2])
    ]


def prompts() -> list[Json]:
    """Prompt references of the default swarm, the text that each stands for and whether it teaches, its right answer,
    and rewards."""
    vectors = []
    for task in DEFAULT_TASKS:
        for seed in PROMPT_SEEDS:
            prompt = task.prompt(task.ref(seed))
            answers = [str(prompt.answer), *WRONG]
            rewards = dict(zip(answers, task.rewards(prompt, answers), strict=True))
            vectors.append(
                {
                    "prompt": plain(prompt.ref),
                    "text": prompt.text,
                    "part": part_of(prompt).value,
                    "answer": prompt.answer,
                    "rewards": rewards,
                }
            )
    return vectors


def default_manifest(name: str) -> Manifest:
    return Manifest(name, default_manifest_tasks())
