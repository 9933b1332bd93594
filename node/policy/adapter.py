"""A LoRA adapter over a base model."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel


def with_adapter(base: PreTrainedModel, rank: int) -> PeftModel:
    """Adapts every linear layer but the head, whole or in 4 bits; the adapted model begins as ``base``.

    The adapter is in float32 whatever the base is in. Its A holds arbitrary values: ``first_factors`` has those that a
    policy begins with.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft uses a name that transformers has since changed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return get_peft_model(base, adapter_config(rank))


def adapter_config(rank: int) -> LoraConfig:
    return LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def adapter_configuration(model: PreTrainedModel | PeftModel) -> dict[str, Any] | None:
    """Returns what another program must know of the adapter that ``model`` has, as peft's files name it; None without
    one."""
    if not isinstance(model, PeftModel):
        return None
    config = model.peft_config[model.active_adapter]
    assert isinstance(config, LoraConfig)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(config.target_modules or ()),
    }
