"""Parts of the learner that an experiment takes out or replaces, one at a time, to see what they do.

They are no settings of a node: nobody would set them. Each of ``ABLATIONS`` replaces a name in one module of the node
while a run lasts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.learner.answers import right_answers
from node.learner.answers.right_answers import Rehearsal
from node.learner.objective import training_groups
from node.learner.objective.advantages import turn_advantages
from node.learner.round import learning
from node.learner.steps import rate_control, step


@contextmanager
def replaced(module: ModuleType | type, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def dealt_out(turn_rewards: Sequence[Sequence[float]], turns: int) -> NDArray[np.float32]:
    """Returns the advantages of a group's conversations (G, turns), each for another conversation by chance: steps are
    as long as ever, and have no direction."""
    earned = turn_advantages(turn_rewards, turns)
    return np.random.default_rng(zlib.crc32(earned.tobytes())).permutation(earned)


ABLATIONS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    "whole steps": partial(replaced, step, "signal_share", lambda *batch: 1.0),
    "nothing seen again": partial(replaced, Rehearsal, "drawn", lambda *arguments: []),
    "imitation at the learning rate": partial(replaced, learning, "IMITATION_RATE", 1.0),
    "seen every 5 rounds": partial(replaced, right_answers, "SEEN_EVERY", 5),
    "a quarter of the movement": partial(replaced, rate_control, "TARGET", rate_control.TARGET / 4),
    "steps of any length": partial(replaced, rate_control, "MOST_MOVED", math.inf),
    "advantages dealt out": partial(replaced, training_groups, "turn_advantages", dealt_out),
}
