"""Takes back the optimizer steps of a phase that ran out of memory after the first of them.

With one step a round the step is the last thing that the learning phase does, and nothing has to be taken back. With
``objective.steps`` above 1 more follows. Then weights and moments are copied to main memory before the phase: 12 bytes
for each trained weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.memory.errors import completed
from node.learner.memory.phases import PhaseRunner
from node.learner.steps.optimizer import MasterAdamW
from node.policy.whole_tensors import elements_of, joined, renamed

Result = TypeVar("Result")


class Undo:
    """What weights and moments were when it was made, or renewed."""

    def __init__(self, optimizer: MasterAdamW) -> None:
        self._optimizer = optimizer
        self._state: dict[str, Tensor] = {}
        self.renew()

    def renew(self) -> None:
        """Takes everything as it is now, into the memory that this has already. It cannot be restored if that fails."""
        self._optimizer.prepare()  # moments that do not exist yet could not be taken back
        state = joined(renamed(self._optimizer.masters(), "master."), self._optimizer.state())
        self._state = _copied(state, self._state)
        self._steps_skipped = self._optimizer.steps_skipped

    def restore(self) -> None:
        """Puts everything back."""
        completed(lambda: self._optimizer.restore(self._state))
        self._optimizer.steps_skipped = self._steps_skipped


def copy_within(most_weights: int, optimizer: MasterAdamW, instead_of: Undo | None = None) -> Undo | None:
    """Returns a copy in main memory, None where more than ``most_weights`` are trained. ``instead_of`` is a copy that
    is no longer needed: it becomes the new one."""
    if elements_of(optimizer.masters()) > most_weights:
        return None
    if instead_of is None:
        return Undo(optimizer)
    instead_of.renew()
    return instead_of


def steps_or_nothing(
    phases: PhaseRunner,
    steps: Callable[[], Result],
    optimizer: MasterAdamW,
    objective: ObjectiveSection,
    release: Callable[[], None],
) -> Result:
    """Returns what ``steps`` returns. Where memory runs out in it, everything is as before, and it is repeated.

    ``release`` gives back what the engine holds.
    """
    undo: Undo | None = None

    def attempt() -> Result:
        nonlocal undo
        if undo is None and objective.steps > 1:  # otherwise nothing that may run out follows the step
            undo = Undo(optimizer)
        return steps()

    def drop() -> None:
        optimizer.drop_gradients()
        release()
        if undo is not None:
            undo.restore()

    return phases.run("learn", attempt, drop)


def _copied(tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns copies in main memory, in the tensors of ``into`` where there are any."""
    return {
        name: into[name].copy_(tensor.detach()) if name in into else tensor.detach().to("cpu", copy=True)
        for name, tensor in tensors.items()
    }
