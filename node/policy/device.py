"""Which device and dtype the configuration's "auto" stands for on this machine."""

from __future__ import annotations

import torch

from protocol.errors import ConfigurationError


def choose_device(wanted: str) -> torch.device:
    """The best there is for "auto"; else the wanted one. Raises ``ConfigurationError`` where it is not to be had."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if not available[wanted]:
        raise ConfigurationError(
            f"policy.device is {wanted!r}, which this machine or this build of torch lacks: use auto"
        )
    return torch.device(wanted)


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """On a GPU with bfloat16, that; elsewhere float32, which small models on a CPU run faster in."""
    if wanted == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
