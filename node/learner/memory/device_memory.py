"""The memory of the device that the model is on: how much, how much of it is free, how much is ours."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from node.fit.host_memory import host_memory_bytes
from node.policy.device import device_memory_bytes


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
    """Returns the present memory of a CUDA device; None for another, where one number for all programs is not known."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, torch.cuda.memory_reserved(device))


def total_memory_bytes(device: torch.device) -> int:
    """Returns the bytes that a model on ``device`` could have in all."""
    own = device_memory_bytes(device)
    return host_memory_bytes() if own is None else own
