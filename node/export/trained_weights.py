"""The trained weights of a checkpoint, in float32: from the optimizer's master weights where it keeps them.

An adapter is written in PEFT's format from these alone: the base model is neither loaded nor needed.
``adapter_config.json`` names base model, rank and adapted layers, ``adapter_model.safetensors`` holds the factors, as
peft, transformers and vLLM (``--enable-lora``) read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from peft import PeftConfig
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from node.checkpoints.checkpoint_files import TENSORS
from node.policy.adapter import adapter_config
from protocol.errors import StorageError

_WEIGHTS: Final = "weights."
_MASTERS: Final = "optimizer.master."
_ADAPTER_NAME: Final = ".default."  # stands in the policy's names of tensors, and not in the file's
_FACTOR: Final = ".lora_A."


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
    return next((int(tensor.shape[0]) for name, tensor in weights.items() if _FACTOR in name), 0)


def check_finite(weights: Mapping[str, Tensor], of: str) -> None:
    """Raises ``StorageError`` for the first tensor with a value that is not finite."""
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            broken = int((~torch.isfinite(tensor)).sum())
            raise StorageError(
                f"{of}: {broken} of {tensor.numel()} values of {name} are not finite, so this model cannot answer: "
                "export an earlier checkpoint with --checkpoint"
            )


def write_adapter(folder: Path, weights: Mapping[str, Tensor], base: str) -> None:
    """Writes the adapter of ``base``, a hub id or an absolute path."""
    layers = {name.partition(_FACTOR)[0].rsplit(".", 1)[-1] for name in weights if _FACTOR in name}
    config: PeftConfig = adapter_config(adapter_rank(weights))
    config.target_modules = sorted(layers)  # type: ignore[attr-defined]
    config.base_model_name_or_path = base
    config.inference_mode = True
    config.save_pretrained(str(folder))
    named = {name.replace(_ADAPTER_NAME, "."): tensor.contiguous() for name, tensor in weights.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
