"""The device and dtype for this machine when the configuration says "auto"."""

from __future__ import annotations

import torch

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


def device_memory_bytes(device: torch.device) -> int | None:
    """Returns the memory of a GPU that this process may use, in all; None for a device without memory of its own."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.mem_get_info(device)[1] * torch.cuda.get_per_process_memory_fraction(device))


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Returns for "auto" bfloat16 on a GPU that computes in it, otherwise float32. That is faster for small models on a
    CPU, and on a GPU before Ampere, which only emulates bfloat16."""
    if wanted == "auto":
        computes = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if computes else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
