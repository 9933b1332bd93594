"""The result of one evaluation while training, as events and checkpoints hold it. Imports no torch."""

from __future__ import annotations

from msgspec import Struct


class HeldOutReward(Struct, frozen=True):
    """Mean reward of one greedy completion a prompt, on the first prompts of each task."""

    round: int  # rounds done when it was measured
    prompts: int  # of each task
    reward_by_task: dict[str, float]  # 0 to 1 for most tasks

    @property
    def reward(self) -> float:
        """The mean over the tasks, by which checkpoints are compared."""
        return sum(self.reward_by_task.values()) / len(self.reward_by_task)

    def comparable_with(self, other: HeldOutReward) -> bool:
        """Whether both were measured on the same prompts."""
        return self.prompts == other.prompts and self.reward_by_task.keys() == other.reward_by_task.keys()
