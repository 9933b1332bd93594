"""What ``python -m node.policy.device_probe`` prints: one JSON object, for processes that do not import torch."""

from __future__ import annotations

from msgspec import Struct


class TorchProbe(Struct, frozen=True):
    version: str
    device: str  # "cpu", "cuda" or "mps": where a node would train
    device_name: str
    device_bytes: int | None  # memory of a GPU; None for the CPU
    device_free_bytes: int | None
    dtype: str  # of the weights in the forward pass
    threads: int
    has_cuda: bool  # this build of torch can use NVIDIA GPUs
    hip: str | None  # the version of ROCm that this build of torch is for
    failure: str | None  # why a small product and its gradient failed there
