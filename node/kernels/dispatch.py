"""The one place that decides, by device, which implementation works on tensors.

``cpu``: compiled loops (numba), in place. ``cuda``, which is also PyTorch's name for ROCm: Triton, in place. Any other
device: the caller copies the tensors to host memory first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TRITON_DEVICES = {"cuda"}


def for_triton(tensors: Sequence[Tensor]) -> bool:
    """Returns whether all tensors lie on one device that Triton compiles for.

    Import ``triton_*`` only then: Triton comes only with a PyTorch for GPUs.
    """
    devices = {tensor.device for tensor in tensors}
    return len(devices) == 1 and is_for_triton(devices.pop())


def is_for_triton(device: torch.device) -> bool:
    return device.type in TRITON_DEVICES
