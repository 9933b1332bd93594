"""What every kind of moments offers, and which weights have which kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from node.configuration import OptimizerName
from node.fit.optimizer_size import SMALLEST_IN_8_BITS
from node.learner.steps.adamw.eight_bit_moments import EightBitMoments
from node.learner.steps.adamw.float32_moments import Float32Moments
from node.learner.steps.adamw.saved_moments import SavedMoments
from protocol.errors import ConfigurationError


class Moments(Protocol):
    """The moments of some float32 weights, by name."""

    def prepare(self) -> None:
        """Allocates all moments that are not there yet; they are 0."""

    def step(self, name: str, index: int, part: slice, gradient: Tensor, rate: float, weight_decay: float) -> None:
        """Moves the ``index``-th slice of weights ``name``, flat ``part``, by its ``gradient`` (N,) in float32.

        ``prepare`` or ``restore`` was called before. Where it runs out of memory, nothing has changed.
        """

    def state(self, name: str) -> dict[str, Tensor]:
        """Returns "step" and the moments as live tensors, by key; nothing before the first ``prepare``."""
        ...

    def restore(self, name: str, saved: SavedMoments) -> None:
        """Replaces the moments by copies of saved ones for weights of the same shape, of whichever kind."""


def moments_of(kind: OptimizerName, weights: Mapping[str, Tensor]) -> dict[str, Moments]:
    """Returns, by name, the ``Moments`` in which each of the ``weights`` has its own.

    Raises ``ConfigurationError`` where ``kind`` does not work on the weights' device.
    """
    whole = Float32Moments({name: w for name, w in weights.items() if not _in_8_bits(kind, w)})
    small = EightBitMoments({name: w for name, w in weights.items() if _in_8_bits(kind, w)})
    return {name: small if _in_8_bits(kind, w) else whole for name, w in weights.items()}


def _in_8_bits(kind: OptimizerName, weights: Tensor) -> bool:
    if kind != "adamw8bit" or weights.numel() < SMALLEST_IN_8_BITS:
        return False
    if weights.device.type not in ("cpu", "cuda"):
        raise ConfigurationError(
            f'learner.optimizer is "adamw8bit", which works on the CPU and on CUDA, and the policy is on '
            f'{weights.device.type}: use "adamw"'
        )
    return True
