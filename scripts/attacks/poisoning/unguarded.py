"""A learner that learns from whatever others send with true rewards: against it the cost of guards is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from node.learner.influence.guard import Guard, Harm
from node.learner.influence.watch import Groups
from node.learner.objective.batch import TrainingGroup
from node.learner.steps.undo import Undo


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
