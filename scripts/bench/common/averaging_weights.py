"""The weights with which each peer of ``averaging_exchange.py`` begins a round, the same in every process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def weights_of(number: int, peer: int, parameters: int) -> NDArray[np.float32]:
    """Returns the weights of ``peer`` in round ``number``: (parameters,) bf16 values as float32, N(0, 0.02²)."""
    random = np.random.default_rng((number, peer))
    exact = (random.standard_normal(parameters, dtype=np.float32) * np.float32(0.02)).view(np.uint32)
    rounded: NDArray[np.float32] = ((exact + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded
