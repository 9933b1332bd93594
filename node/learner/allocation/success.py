"""The learner's running success on each class of prompts, V_θ(class) ← .9 V_θ + .1 mean R. A class is a task.

V_θ is the baseline of foreign groups (``objective.advantages``), and the node announces it in its heartbeat. It starts
at .1, which is low on purpose: a node that knows nothing of a task must value the groups of peers that succeed at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol import limits
from protocol.messages import TaskSuccess

INITIAL_SUCCESS = 0.1
DECAY = 0.9


@dataclass(frozen=True, slots=True)
class ClassSuccess:
    success: float = INITIAL_SUCCESS
    samples: int = 0  # completions seen
    initial_share: float = 1.0  # of ``INITIAL_SUCCESS`` in ``success``

    @property
    def measured(self) -> float:
        """The success without the initial value: the running mean of rewards alone, for people and charts."""
        if self.initial_share >= 1.0:
            return 0.0
        measured = (self.success - self.initial_share * INITIAL_SUCCESS) / (1.0 - self.initial_share)
        return min(1.0, max(0.0, measured))


@dataclass(slots=True)
class SuccessTracker:
    """Running success by class. The caller must observe own completions by the newest policy only."""

    classes: dict[str, ClassSuccess] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """Returns V_θ, which is ``INITIAL_SUCCESS`` for a class never observed."""
        return self.classes.get(name, ClassSuccess()).success

    def observe(self, rewards_by_class: Mapping[str, Sequence[float]]) -> None:
        """Takes one round's rewards: one update per class that occurs, whatever the number of its samples."""
        for name, rewards in rewards_by_class.items():
            if rewards:
                before = self.classes.get(name, ClassSuccess())
                mean = sum(rewards) / len(rewards)
                success = DECAY * before.success + (1 - DECAY) * mean
                self.classes[name] = ClassSuccess(success, before.samples + len(rewards), DECAY * before.initial_share)

    def announced(self) -> tuple[TaskSuccess, ...]:
        """Returns the classes most sampled, within the protocol's bounds, for the heartbeat."""
        most = sorted(self.classes.items(), key=lambda item: (-item[1].samples, item[0]))[: limits.TASKS_PER_HEARTBEAT]
        return tuple(TaskSuccess(name, min(max(s.success, 0.0), 1.0), s.samples) for name, s in most)

    def copy(self) -> SuccessTracker:
        """Returns a copy of the present state, for another thread."""
        return SuccessTracker(dict(self.classes))
