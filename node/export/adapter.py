"""An adapter in PEFT's format, made from the checkpoint alone: the base model is neither loaded nor needed.

``adapter_config.json`` names base model, rank and adapted layers, ``adapter_model.safetensors`` holds the factors, as
peft, transformers and vLLM (``--enable-lora``) read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from peft import PeftConfig
from safetensors.torch import save_file
from torch import Tensor

from node.export.trained_weights import adapter_rank
from node.policy.adapter import adapter_config

_ADAPTER_NAME: Final = ".default."  # stands in the policy's names of tensors, and not in the file's
_FACTOR: Final = ".lora_A."


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
