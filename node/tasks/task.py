"""The interface of a task: prompts that any node regenerates from a reference, and rewards that any node recomputes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from protocol.errors import MalformedError
from protocol.messages import PromptRef

SPLIT: Final = "starling/split/1"
"""The rule by which questions measure or teach (``node.tasks.split``). Another rule makes other tasks."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A regenerated prompt: the text for the policy, and what the reward function needs."""

    ref: PromptRef
    text: str
    answer: str | None  # the reference answer, if there is one
    entry: Mapping[str, Any]  # private to the task: what ``rewards`` needs; never from a peer
    question: str | None = None  # what is asked, without instructions that every prompt has; None: all of ``text``
    tools: Sequence[Mapping[str, Any]] = ()  # those that an answer may call, as chat templates take them

    @property
    def question_text(self) -> str:
        """By which the prompt teaches or measures: ``node.tasks.split``."""
        return self.text if self.question is None else self.question


class Task(Protocol):
    """Deterministic: equal references give equal prompts and rewards on every node with this task at this version."""

    @property
    def name(self) -> str:
        """At most 64 bytes of UTF-8; unique among a node's tasks."""

    @property
    def version(self) -> int:
        """Raised with every change of prompts or rewards."""

    @property
    def config_hash(self) -> bytes:
        """16 bytes that differ if anything differs that shapes prompts or rewards: see ``config_hash_of``."""

    @property
    def max_new_tokens(self) -> int:
        """The most tokens of a completion, in tokens of the generating policy."""

    def ref(self, seed: int) -> PromptRef:
        """Returns the reference of a prompt for any seed from 0 up, as a rule modulo the number of prompts."""

    def prompt(self, ref: PromptRef) -> Prompt:
        """Returns the prompt. Raises ``MalformedError`` for a reference that the task lacks (``check_ref``)."""

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        """Returns one reward per completion, 0 to 1 as a rule. May raise, hang or return NaN: the scorer guards it."""


def canonical_json(shape: Mapping[str, Any]) -> str:
    """Returns ``shape`` as JSON in ASCII, keys sorted, without spaces; a tuple is an array."""
    return json.dumps(shape, sort_keys=True, separators=(",", ":"))


def config_hash_of(shape: Mapping[str, Any]) -> bytes:
    """Returns SHA-256[:16] of the canonical JSON of ``shape``, everything that shapes prompts and rewards, and of the
    rule by which questions are held out."""
    return hashlib.sha256(canonical_json({**shape, "split": SPLIT}).encode()).digest()[:16]


class Versioned(Protocol):
    """What a reference names: a task or an environment."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def config_hash(self) -> bytes: ...


def check_ref(task: Versioned, ref: PromptRef, seeds: int) -> None:
    """Raises MalformedError, naming the difference, unless ``ref`` is one of the ``seeds`` prompts of ``task``."""
    if ref.task != task.name:
        raise MalformedError(f"prompt of task {ref.task!r} given to task {task.name!r}")
    if ref.version != task.version:
        raise MalformedError(f"task {task.name!r} is version {task.version} here, {ref.version} in the reference")
    if ref.config_hash != task.config_hash:
        raise MalformedError(
            f"task {task.name!r} is configured differently here ({task.config_hash.hex()}) than in the reference "
            f"({ref.config_hash.hex()})"
        )
    if not 0 <= ref.seed < seeds:
        raise MalformedError(f"task {task.name!r} has seeds 0 to {seeds - 1}, not {ref.seed}")
