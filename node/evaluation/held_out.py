"""The result of one evaluation while training, as events and checkpoints hold it. Imports no torch."""

from __future__ import annotations

from msgspec import Struct


class HeldOutReward(Struct, frozen=True):
    """Mean rewards of one greedy completion a prompt, on questions that nobody trains on (``node.tasks.split``).

    Of several checkpoints the one that looks best on some prompts is partly the one that was lucky on them. So one set
    chooses (``validation``), and the other, which decides nothing, is reported.
    """

    round: int  # rounds done when it was measured
    prompts: int  # of each task in either set, at most; a small data set has fewer
    reward_by_task: dict[str, float]  # on the test set; 0 to 1 for most tasks
    validation: float  # the mean over the tasks on the validation set, by which checkpoints are compared

    @property
    def reward(self) -> float:
        """The mean over the tasks on the test set."""
        return sum(self.reward_by_task.values()) / len(self.reward_by_task)

    def comparable_with(self, other: HeldOutReward) -> bool:
        """Whether both were measured on the same prompts."""
        return self.prompts == other.prompts and self.reward_by_task.keys() == other.reward_by_task.keys()
