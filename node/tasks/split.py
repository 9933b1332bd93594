"""Which questions teach and which only measure: a fixed split by the question's text, the same in every node.

    d = SHA-256("starling/split/1" ‖ line feed ‖ normalised question)[0] mod 16

    0       validation: chooses the best checkpoint, and judges weights of peers before they are kept
    1       test: is reported, and decides nothing
    others  training

So one text in eight is never trained on, by nobody, whatever task or data set it comes from: own draws pass over it,
and a peer's group on it is refused (``node.learner.foreign.verification``). Texts that differ only in case, white space
or Unicode's compatible forms are one. The rule is part of every task's configuration hash (``task.config_hash_of``).
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from node.environments.conversation import ConversationTask
from node.tasks.task import SPLIT, Prompt, Task
from protocol.errors import ConfigurationError

PARTS: Final = 16
DRAWS: Final = 4096  # to find one question that teaches: more only where next to no row of a data set does
DRAWS_EACH: Final = 64  # for one question that measures, of which there is one in sixteen


class Part(StrEnum):
    """What a question is for."""

    TRAINING = "training"
    VALIDATION = "validation"
    TEST = "test"


_MEASURES: Final = {0: Part.VALIDATION, 1: Part.TEST}


def part_of(prompt: Prompt) -> Part:
    """Returns the part that the prompt's question is in, for good."""
    text = f"{SPLIT}\n{normalised(prompt.question_text)}"
    return _MEASURES.get(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[0] % PARTS, Part.TRAINING)


def normalised(text: str) -> str:
    """Returns ``text`` in Unicode's form NFKC and lower case, with one space for each run of white space inside it and
    none around it."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def training_prompt(task: Task, seed: int) -> Prompt:
    """Returns the prompt of ``seed``, or of the next seed whose question teaches.

    Raises ``ConfigurationError`` where none of ``DRAWS`` does: then the task is a data set of very few rows.
    """
    for number in range(DRAWS):
        prompt = task.prompt(task.ref(seed + number))
        if part_of(prompt) is Part.TRAINING:
            return prompt
    raise ConfigurationError(
        f"task {task.name!r} has no question to train on: one in eight, chosen by its text, only measures, and here "
        "that is all of them. Add rows"
    )


def held_out_prompts(
    tasks: Mapping[str, Task], part: Part, most: int, *, first_seed: int = 0
) -> dict[str, list[Prompt]]:
    """Returns by task the first ``most`` prompts of ``part`` from ``first_seed`` on, each question once.

    A small data set may have fewer, and has none of a question that no row asks; a task without any is left out.
    """
    return held_out_sets(tasks, (part,), most, first_seed=first_seed)[part]


def held_out_sets(
    tasks: Mapping[str, Task], parts: Collection[Part], most: int, *, first_seed: int = 0
) -> dict[Part, dict[str, list[Prompt]]]:
    """Returns ``held_out_prompts`` of each of ``parts``, found in one search."""
    seeds = range(first_seed, first_seed + most * DRAWS_EACH)
    sets: dict[Part, dict[str, list[Prompt]]] = {part: {} for part in parts}
    for name, task in tasks.items():
        missing = dict.fromkeys(parts, most)
        for part, prompt in held_out(task, parts, seeds):
            if missing[part]:
                missing[part] -= 1
                sets[part].setdefault(name, []).append(prompt)
                if not any(missing.values()):
                    break
    return sets


def held_out(task: Task, parts: Collection[Part], seeds: Iterable[int]) -> Iterator[tuple[Part, Prompt]]:
    """Yields the prompts of ``parts`` among those of ``seeds``, each question once; conversations that begin alike are
    different ones."""
    conversations = isinstance(task, ConversationTask)
    seen: set[str] = set()
    for seed in seeds:
        prompt = task.prompt(task.ref(seed))
        text = normalised(prompt.question_text)
        if conversations or text not in seen:
            part = part_of(prompt)
            if part in parts:
                seen.add(text)
                yield part, prompt
