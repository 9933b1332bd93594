"""What learns without care: a task that finds every right text worth copying, and a learner without any guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from node.learner.influence.guard import Guard, Harm
from node.learner.influence.watch import Groups
from node.learner.objective.batch import TrainingGroup
from node.learner.steps.undo import Undo
from node.tasks.task import Prompt, Task
from protocol.messages import PromptRef


class LenientTask:
    """Everything of another task, except for what it knows of exact answers, as a careless plug-in's: then the guard is
    all there is."""

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


class NoGuard(Guard):
    """Admits everybody, scales nothing, and never finds harm."""

    def admits(self, round_number: int) -> Callable[[str], bool]:
        return lambda peer: True

    def shaped(
        self, round_number: int, own: Sequence[TrainingGroup], foreign: Sequence[tuple[str, TrainingGroup]]
    ) -> list[TrainingGroup]:
        return [group for _, group in foreign]

    def may_teach_again(self, peer: str) -> bool:
        return True

    def shaped_again(
        self, round_number: int, own: Sequence[TrainingGroup], foreign: Sequence[tuple[str, TrainingGroup]]
    ) -> list[TrainingGroup]:
        return [group for _, group in foreign]

    def after_round(
        self, round_number: int, groups: Groups, copied: Callable[[Undo | None], Undo | None]
    ) -> Harm | None:
        return None
