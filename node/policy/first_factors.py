"""The first weights of an adapter: B is zero, and A is drawn from the family, equal for all of its nodes.

A LoRA adapter adds s B A to a matrix. Nodes that average A and B each for itself get the mean of their products only if
their A are equal: Σ B_i A_i / n = (Σ B_i / n) A (``docs/experiments/adapters.md``).

Each value of A, (r, in), in row-major order, is u s, with u = (three bytes, little-endian) - 2²³ and s = 2⁻²³ / √in
rounded to float32: evenly spread over ± 1/√in, as torch and peft draw it. The bytes are SHAKE-256 of a tag, the family
and the tensor's name (docs/protocol.md), so that every machine and every version of every library draws the same.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import Parameter

FIRST_FACTOR: Final = ".lora_A."
FIRST_FACTORS: Final = "first factors from the family, 1"  # as a family's identity names them
_TAG: Final = b"starling/first-factor/1\0"
_VALUE_BYTES: Final = 3
_MIDDLE: Final = 1 << 23


def is_first_factor(name: str) -> bool:
    return FIRST_FACTOR in name


@torch.no_grad()
def draw_first_factors(trained: dict[str, Parameter], family: bytes) -> None:
    """Overwrites every A among ``trained``; other tensors keep their values."""
    for name, parameter in trained.items():
        if is_first_factor(name):
            rows, columns = parameter.shape
            parameter.copy_(torch.from_numpy(first_factor(family, name, rows, columns)))


def first_factor(family: bytes, name: str, rank: int, inputs: int) -> NDArray[np.float32]:
    """Returns A of one matrix, (rank, inputs)."""
    drawn = hashlib.shake_256(_TAG + family + name.encode()).digest(_VALUE_BYTES * rank * inputs)
    low, middle, high = np.frombuffer(drawn, np.uint8).reshape(-1, _VALUE_BYTES).astype(np.int32).T
    steps = (low | middle << 8 | high << 16) - _MIDDLE
    scale = np.float32(1.0 / (_MIDDLE * np.sqrt(np.float64(inputs))))
    values: NDArray[np.float32] = steps.astype(np.float32) * scale
    return values.reshape(rank, inputs)
