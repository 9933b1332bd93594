"""The one place that decides, by device, which implementation works on tensors.

``cpu``: compiled loops (numba), in place. ``cuda``, which is also PyTorch's name for ROCm: Triton, in place, where
installed (a PyTorch for Windows comes without it). Any other device: plain torch, or the caller copies the tensors to
host memory first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

TRITON_DEVICES = {"cuda"}


def is_gpu(device: torch.device) -> bool:
    """Returns whether Triton compiles for this kind of device, be it installed or not."""
    return device.type in TRITON_DEVICES


def for_triton(tensors: Sequence[Tensor]) -> bool:
    """Returns whether all tensors lie on one device that Triton compiles for.

    Import modules with Triton kernels only then: Triton comes only with a PyTorch for GPUs.
    """
    devices = {tensor.device for tensor in tensors}
    return len(devices) == 1 and is_for_triton(devices.pop())


def is_for_triton(device: torch.device) -> bool:
    return is_gpu(device) and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    return find_spec("triton") is not None


def has_products(device: torch.device) -> bool:
    """Whether Triton uses the device's tensor cores: on NVIDIA's cards it does from Ampere on."""
    return device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)
