"""Which weights have which kind of moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from node.configuration import OptimizerName
from node.fit.optimizer_size import SMALLEST_IN_8_BITS
from node.learner.steps.adamw.eight_bit_moments import EightBitMoments
from node.learner.steps.adamw.float32_moments import Float32Moments
from node.learner.steps.adamw.saved_moments import Moments
from protocol.errors import ConfigurationError


def moments_of(kind: OptimizerName, weights: Mapping[str, Tensor]) -> dict[str, Moments[Any]]:
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
