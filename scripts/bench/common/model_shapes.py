"""Model folders of the shape of published models, with random weights: no hub can be reached where benchmarks run.

The tokenizer is a built-in model's, which has fewer tokens than these vocabularies; the head is as wide as theirs.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from node.policy.model_files import BUILTIN_MODELS
from scripts.bench.common.published_shapes import config_of


def write_model(folder: Path, shape: str, *, layers: int | None = None, seed: int = 0) -> Path:
    """Writes a model of the shape into ``folder``, bf16 on disk as published ones are; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape, layers=layers)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILTIN_MODELS / "robin" / name, folder)
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    tied = bool(config.tie_word_embeddings)
    tensors = {}
    for name, parameter in model.named_parameters():
        if tied and name == "lm_head.weight":
            continue
        values = torch.empty(parameter.shape, dtype=torch.bfloat16)
        if parameter.ndim == 1:
            values.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            values.normal_(0.0, 1 / math.sqrt(parameter.shape[-1]), generator=generator)
        tensors[name] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
