"""The device and dtype for this machine when the configuration says "auto"."""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.errors import ConfigurationError


def choose_device(wanted: str) -> torch.device:
    """Returns the best device for "auto", otherwise the wanted one. Raises ``ConfigurationError`` if it is missing."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if not available[wanted]:
        raise ConfigurationError(
            f"policy.device is {wanted!r}, which this machine or this build of torch lacks: use auto"
        )
    return torch.device(wanted)


def free_cached_blocks() -> None:
    """Gives the blocks that torch keeps of a GPU's memory for later back. Does nothing where no GPU is in use."""
    torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def reserved_bytes() -> int | None:
    """Returns what torch holds of a GPU's memory: of CUDA's the most since the process began, of Apple's, which has no
    such number, what Metal has allocated now. None where no GPU is in use."""
    if torch.backends.mps.is_available():
        return torch.mps.driver_allocated_memory() or None
    return torch.cuda.max_memory_reserved() or None


def device_memory_bytes(device: torch.device) -> int | None:
    """Returns the memory of a GPU that this process may use, in all; None for a device without memory of its own."""
    if device.type != "cuda":
        return None
    # By number, or None for the current one: this function of torch refuses "cuda" without a number.
    share = torch.cuda.get_per_process_memory_fraction(device.index)
    return int(torch.cuda.mem_get_info(device)[1] * share)


def widest_float(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 on Apple's GPUs, which have nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns ``tensor``, which lies in main memory, on ``device``, without waiting for what the device computes.

    CUDA's driver has copied pageable memory when the call returns. Other devices may read it later, so there it waits.
    """
    return tensor.to(device, non_blocking=device.type == "cuda")


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Returns for "auto" bfloat16 on a GPU that computes in it, otherwise float32. That is faster for small models on a
    CPU, and on a GPU before Ampere, which only emulates bfloat16."""
    if wanted == "auto":
        computes = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if computes else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
