"""What a task is: prompts that any node can regenerate from a reference, and a reward that any node can recompute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from protocol.errors import MalformedError
from protocol.messages import PromptRef


@dataclass(frozen=True, slots=True)
class Prompt:
    """A regenerated prompt: what the policy reads, and what its reward function needs to judge an answer."""

    ref: PromptRef
    text: str
    answer: str | None  # the reference answer where there is one
    entry: Mapping[str, Any]  # task-private, from the generator, never from a peer


class Task(Protocol):
    """Deterministic: equal ``ref`` gives equal prompts and rewards on every node that has this task at this version."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def config_hash(self) -> bytes:
        """16 bytes over the canonical JSON of everything that shapes prompts and rewards."""

    @property
    def max_new_tokens(self) -> int:
        """Bound on the length of a completion, in tokens of the generating policy."""

    def ref(self, seed: int) -> PromptRef:
        """The reference of a prompt; any number from 0 up is taken, round and round over what the task has."""

    def prompt(self, ref: PromptRef) -> Prompt:
        """Raises ``protocol.errors.MalformedError`` for a seed or version that this task does not have."""

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        """One reward a completion, 0 to 1 as a rule. May raise, hang or return NaN: the scorer guards against each."""


def check_ref(task: Task, ref: PromptRef, seeds: int) -> None:
    """Raises MalformedError, naming what differs, unless ``ref`` is one of the ``seeds`` prompts of ``task`` here."""
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
