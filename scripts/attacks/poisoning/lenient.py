"""A task that finds every right text worth copying, as a careless plug-in's: then the guard is all there is."""

from __future__ import annotations

from collections.abc import Sequence

from node.tasks.task import Prompt, Task
from protocol.messages import PromptRef


class LenientTask:
    """Everything of another task, except for what it knows of exact answers."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.name, self.version, self.config_hash = task.name, task.version, task.config_hash
        self.max_new_tokens = task.max_new_tokens

    def ref(self, seed: int) -> PromptRef:
        return self._task.ref(seed)

    def prompt(self, ref: PromptRef) -> Prompt:
        return self._task.prompt(ref)

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return self._task.rewards(prompt, completions)

    def is_canonical(self, prompt: Prompt, completion: str) -> bool:
        return True


def lenient(task: Task) -> Task:
    return LenientTask(task)
