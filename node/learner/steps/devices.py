"""The devices that take an optimizer step together: how a batch is divided, and what they must agree on.

Every device runs ``step.OptimizerSteps.take`` on the same groups. Of the micro-batches each has its own; what is
decided from the whole batch (report, learning rate, the gradient's norm) is summed over all devices first, and equal on
all.

The devices run a model's body in step, since each of its layers is gathered from all of them. So each gets as many
micro-batches as the others, and where there is none for it, ``IDLE``; all of them call the body equally often.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.learner.objective.forward import MicroBatch, PassSettings
from node.learner.objective.report import ObjectiveReport

IDLE: Final = MicroBatch(
    prompts=((0,),),
    prompt_of=(0,),
    completions=(
        TrainingCompletion(
            np.zeros(1, np.int64), Alignment(np.zeros(1, np.int64), np.zeros(1, np.float32), 0), 0.0, SELF
        ),
    ),
)
"""One token with A = 0: it has no gradient, and counts nowhere."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTask:
    """The groups on which optimizer steps are taken, and how: the order that all devices get."""

    groups: tuple[TrainingGroup, ...]
    passes: PassSettings
    temperature: float
    max_new_tokens: int  # the longest answer of any task
    whole_batch: int  # the completions that a round generates
    rate: float = 1.0
    policy_version: int | None = None  # of the weights before these steps; None: unknown
    measured: int | None = None  # of which pass, counted round, it is measured how far the steps move the policy


class Devices:
    """The devices that learn, as one of them sees them; this class is that of a device which learns alone."""

    rank: int = 0  # which of the devices this is
    count: int = 1

    def added(self, report: ObjectiveReport) -> ObjectiveReport:
        """Returns the sum of all devices' reports, in the order of their ranks. All call it in step."""
        return report


class LeadingDevice(Devices):
    """The device of the learner itself, which tells the others what to do."""

    def taking(self, task: StepTask) -> AbstractContextManager[None]:
        """Returns a context within which all devices take the steps of ``task``, this one by its own call."""
        return nullcontext()

    def beginning(self, task: StepTask) -> AbstractContextManager[None]:
        """The same for ``OptimizerSteps.begin``: the groups of ``task`` are part of the next steps that are taken."""
        return nullcontext()

    def drop_begun(self) -> None:
        """Lets the other devices drop what was begun, this one does it itself."""


ONE_DEVICE: Final = LeadingDevice()


def divided(micro_batches: Sequence[MicroBatch], devices: Devices) -> list[MicroBatch]:
    """Returns the micro-batches of this device, as many as every other one has. Pure."""
    if devices.count == 1:
        return list(micro_batches)
    sets = -(-len(micro_batches) // devices.count)
    own = list(micro_batches[devices.rank :: devices.count])
    own += [IDLE] * (sets - len(own))
    return [replace(each, in_step=True) for each in own]


def share_of_tokens(micro_batches: Sequence[MicroBatch], batch_tokens: int, devices: int) -> int:
    """Returns how many padded tokens a micro-batch may have so that each device has some of the batch's."""
    total = sum(each.padded_tokens() for each in micro_batches)
    return min(batch_tokens, max(1, -(-total // devices)))
