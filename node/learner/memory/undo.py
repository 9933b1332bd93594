"""Takes back the optimizer steps of a phase that ran out of memory after the first of them.

With one step a round and no average of policies, the step is the last thing that the learning phase does, and nothing
has to be taken back. With ``objective.steps`` above 1, or the averaged proximal policy of PPO-EWMA, more follows. Then
weights, moments and average are copied to main memory before the phase: 12 bytes for each trained weight, 16 with the
average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.memory.errors import completed
from node.learner.memory.phases import PhaseRunner
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.weights import CORRECTIONS
from node.learner.optimizer import MasterAdamW

Result = TypeVar("Result")


class Undo:
    """What weights, moments and average were when it was made."""

    def __init__(self, optimizer: MasterAdamW, others: OtherPolicies) -> None:
        optimizer.prepare()  # moments that do not exist yet could not be taken back
        self._optimizer, self._others = optimizer, others
        masters = {f"master.{name}": master for name, master in optimizer.masters().items()}
        self._state = _copied(optimizer.state() | masters)
        self._steps_skipped = optimizer.steps_skipped
        average, self._norm = others.average()
        self._average = _copied(average)

    def restore(self) -> None:
        """Puts everything back."""
        completed(lambda: self._optimizer.restore(self._state))
        self._optimizer.steps_skipped = self._steps_skipped
        completed(lambda: self._others.restore_average(self._average, self._norm))


def copy_within(most_bytes: int, optimizer: MasterAdamW, others: OtherPolicies) -> Undo | None:
    """Returns a copy in main memory, None where it would be larger than ``most_bytes``."""
    average, _ = others.average()
    tensors = [*optimizer.state().values(), *optimizer.masters().values(), *average.values()]
    if sum(tensor.nbytes for tensor in tensors) > most_bytes:
        return None
    return Undo(optimizer, others)


def steps_or_nothing(
    phases: PhaseRunner,
    steps: Callable[[], Result],
    optimizer: MasterAdamW,
    others: OtherPolicies,
    objective: ObjectiveSection,
    release: Callable[[], None],
) -> Result:
    """Returns what ``steps`` returns. Where memory runs out in it, everything is as before, and it is repeated.

    ``release`` gives back what the engine holds.
    """
    undo: Undo | None = None

    def attempt() -> Result:
        nonlocal undo
        if undo is None and needs_undo(objective):
            undo = Undo(optimizer, others)
        return steps()

    def drop() -> None:
        optimizer.drop_gradients()
        release()
        if undo is not None:
            undo.restore()

    return phases.run("learn", attempt, drop)


def needs_undo(objective: ObjectiveSection) -> bool:
    """Whether something that may run out follows the first step of a learning phase."""
    return objective.steps > 1 or CORRECTIONS[objective.correction].averages_proximal


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
