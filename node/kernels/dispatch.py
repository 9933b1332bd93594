"""Which implementation works on tensors: decided here alone, by the device that they lie on.

``cpu``: compiled loops (numba), in place. ``cuda``, which is also what PyTorch calls ROCm: Triton, in place. Any other
device: whoever asks copies to host memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TRITON_DEVICES = {"cuda"}


def for_triton(tensors: Sequence[Tensor]) -> bool:
    """Whether all of them lie on one device that Triton compiles for.

    Only then import ``triton_*``: Triton comes along with a PyTorch for GPUs, and with no other.
    """
    devices = {tensor.device for tensor in tensors}
    return len(devices) == 1 and is_for_triton(devices.pop())


def is_for_triton(device: torch.device) -> bool:
    return device.type in TRITON_DEVICES
