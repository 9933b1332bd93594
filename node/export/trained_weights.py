"""The trained weights of a checkpoint, in float32: from the optimizer's master weights where it keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from node.checkpoints.checkpoint_files import TENSORS
from protocol.errors import StorageError

_WEIGHTS: Final = "weights."
_MASTERS: Final = "optimizer.master."


def trained_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Returns every trained tensor by its name in the policy.

    Raises ``StorageError`` for a file that cannot be read, and for values that are not finite.
    """
    try:
        with safe_open(checkpoint / TENSORS, "pt") as tensors:
            stored = set(tensors.keys())
            names = sorted(name.removeprefix(_WEIGHTS) for name in stored if name.startswith(_WEIGHTS))
            best = {n: f"{_MASTERS}{n}" if f"{_MASTERS}{n}" in stored else f"{_WEIGHTS}{n}" for n in names}
            weights = {name: tensors.get_tensor(key).float() for name, key in best.items()}
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{checkpoint} cannot be read ({error}): export another checkpoint") from error
    if not weights:
        raise StorageError(f"{checkpoint} holds no weights: export another checkpoint")
    check_finite(weights, str(checkpoint))
    return weights


def adapter_rank(weights: Mapping[str, Tensor]) -> int:
    """Returns the rank of the adapter that ``weights`` are; 0 for those of a whole model."""
    return next((int(tensor.shape[0]) for name, tensor in weights.items() if ".lora_A." in name), 0)


def check_finite(weights: Mapping[str, Tensor], of: str) -> None:
    """Raises ``StorageError`` for the first tensor with a value that is not finite."""
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            broken = int((~torch.isfinite(tensor)).sum())
            raise StorageError(
                f"{of}: {broken} of {tensor.numel()} values of {name} are not finite, so this model cannot answer: "
                "export an earlier checkpoint with --checkpoint"
            )
