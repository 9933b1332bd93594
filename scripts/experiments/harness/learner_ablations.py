"""Parts of the learner that an experiment takes out or replaces, one at a time, to see what they do.

They are no settings of a node: nobody would set them. Each replaces a name in one module of the node while a run lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, Final

from torch import Tensor

from node.learner.answers.imitation import Imitation
from node.learner.answers.rehearsal import Rehearsal
from node.learner.objective.batch import TrainingGroup
from node.learner.objective.training_groups import own_training_group
from node.learner.round import learning
from node.learner.steps import step
from node.learner.steps.adamw import float32_moments
from node.learner.steps.adamw.slices import Scratch
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.signal import signal_share


@contextmanager
def _replaced(module: ModuleType | type, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _steps_scaled(scale: Callable[[float], float]) -> AbstractContextManager[None]:
    return _replaced(step, "signal_share", lambda *batch: scale(signal_share(*batch)))


def _negatives_weighed(weight: float) -> AbstractContextManager[None]:
    def weighed(*rollout: Any) -> TrainingGroup:
        group = own_training_group(*rollout)
        completions = [
            replace(c, advantage=c.advantage * (weight if c.advantage < 0 else 1)) for c in group.completions
        ]
        return replace(group, completions=tuple(c for c in completions if c.advantage != 0))

    return _replaced(learning, "own_training_group", weighed)


def _head_slower(scale: float) -> AbstractContextManager[None]:
    """Of what is trained beside an adapter's factors the learning rate is ``scale`` times theirs."""
    whole = MasterAdamW._step

    def step_one(self: MasterAdamW, name: str, gradient: Tensor, clip: float, rate: float, scratch: Scratch) -> None:
        whole(self, name, gradient, clip, rate if ".lora_" in name else scale * rate, scratch)

    return _replaced(MasterAdamW, "_step", step_one)


ABLATIONS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    "whole steps": partial(_steps_scaled, lambda share: 1.0),
    "root of the share": partial(_steps_scaled, math.sqrt),
    "nothing seen again": partial(_replaced, Rehearsal, "drawn", lambda *arguments: []),
    "peers not seen again": partial(_replaced, Imitation, "lessons", lambda *arguments: []),
    "imitation at the learning rate": partial(_replaced, learning, "IMITATION_RATE", 1.0),
    "no negatives": partial(_negatives_weighed, 0.0),
    "negatives at 0.3": partial(_negatives_weighed, 0.3),
    "head at a tenth of the rate": partial(_head_slower, 0.1),
    "short second moment": partial(_replaced, float32_moments, "BETA2", 0.99),
}
