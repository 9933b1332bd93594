"""A LoRA adapter over a base model, by peft.

peft is imported where an adapter is made: it brings bitsandbytes and parts of torch's compiler along, and most nodes of
small models train whole weights.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn
from transformers import PreTrainedModel

from node.library_imports import deferring

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from peft.tuners.lora import LoraLayer


def is_adapted(model: PreTrainedModel | PeftModel) -> TypeGuard[PeftModel]:
    return hasattr(model, "peft_config")


def is_adapted_layer(module: nn.Module) -> TypeGuard[LoraLayer]:
    return hasattr(module, "lora_A")


def with_adapter(base: PreTrainedModel, rank: int) -> PeftModel:
    """Adapts every linear layer but the head, whole or in 4 bits; the adapted model begins as ``base``.

    The adapter is in float32 whatever the base is in. Its A holds arbitrary values: ``first_factors`` has those that a
    policy begins with.
    """
    with deferring(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        from peft import get_peft_model

        # peft uses a name that transformers has since changed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return get_peft_model(base, adapter_config(rank))


def adapter_config(rank: int) -> LoraConfig:
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def adapter_configuration(model: PreTrainedModel | PeftModel) -> dict[str, Any] | None:
    """Returns what another program must know of the adapter that ``model`` has, as peft's files name it; None without
    one."""
    if not is_adapted(model):
        return None
    config: Any = model.peft_config[model.active_adapter]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(config.target_modules or ()),
    }
