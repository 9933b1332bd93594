"""The learning rate where ``learner.learning_rate`` is "auto": from the number of weights, and how they are trained."""

from __future__ import annotations

import math
from typing import Final

# Two points joined by a power law: what suits the built-in models, and what was published for whole models of 0.5 to 3
# billion parameters (F-TIS, arXiv 2605.22537).
SMALL_PARAMETERS: Final = 5e5
SMALL_RATE: Final = 3e-4
LARGE_PARAMETERS: Final = 6e8
LARGE_RATE: Final = 1e-6
# An adapter's best rate is about ten times that of training the whole model, at any rank, by reinforcement learning too
# ("LoRA Without Regret", Schulman and Thinking Machines Lab, 2025). Never above the small models' rate, which is the
# highest that was tried here.
ADAPTER_FACTOR: Final = 10.0


def learning_rate_for(parameters: int, *, adapter: bool = False) -> float:
    """Returns the learning rate for a model of so many parameters, trained whole or by an ``adapter``.

    It lies between the two points' rates for a whole model, and is constant outside of them.
    """
    slope = math.log(LARGE_RATE / SMALL_RATE) / math.log(LARGE_PARAMETERS / SMALL_PARAMETERS)
    rate: float = SMALL_RATE * (parameters / SMALL_PARAMETERS) ** slope
    whole = min(SMALL_RATE, max(LARGE_RATE, rate))
    return min(SMALL_RATE, ADAPTER_FACTOR * whole) if adapter else whole
