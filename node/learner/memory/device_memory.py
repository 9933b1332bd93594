"""The memory of the device that the model is on: how much, how much of it is free, how much is ours.

On the host: ``node.compute_environment`` lets glibc map every tensor above 4 MiB by itself, for all models. A model of
half a billion weights has many tensors between 1 and 4 MiB; freed, they leave holes that no later tensor fits. Mapping
those too costs a small model a third of its speed, and a large one nothing that was measurable.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Final

import torch

from node.compute_environment import COMPUTE_DEFAULTS
from node.fit.host_memory import host_memory_bytes
from node.policy.device import device_memory_bytes

LARGE_PARAMETERS: Final = 50_000_000
THRESHOLD_BYTES: Final = 1 << 20
_VARIABLE: Final = "MALLOC_MMAP_THRESHOLD_"
_M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of one accelerator."""

    total_bytes: int
    free_bytes: int
    own_bytes: int  # reserved by this process's allocator, whether in use or not

    @property
    def others_bytes(self) -> int:
        """What other processes hold, and this process's own context: some hundred megabytes."""
        return max(0, self.total_bytes - self.free_bytes - self.own_bytes)


def device_memory(device: torch.device) -> DeviceMemory | None:
    """Returns the present memory of a GPU, None of a CPU. Of Apple's, which is main memory, it is what Metal recommends
    as the most for this process, and others' share is not known."""
    if device.type == "mps":
        total, own = torch.mps.recommended_max_memory(), torch.mps.driver_allocated_memory()
        return DeviceMemory(total, max(0, total - own), own)
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, torch.cuda.memory_reserved(device))


def total_memory_bytes(device: torch.device) -> int:
    """Returns the bytes that a model on ``device`` could have in all."""
    own = device_memory_bytes(device)
    return host_memory_bytes() if own is None else own


def return_freed_tensors(parameters: int) -> None:
    """Lowers the size for a model of so many ``parameters``, if it is large. Does nothing where the C library is not
    glibc, or the user has set the variable."""
    set_by_user = os.environ.get(_VARIABLE, COMPUTE_DEFAULTS[_VARIABLE]) != COMPUTE_DEFAULTS[_VARIABLE]
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if parameters >= LARGE_PARAMETERS and mallopt is not None and not set_by_user:
        mallopt(_M_MMAP_THRESHOLD, THRESHOLD_BYTES)
