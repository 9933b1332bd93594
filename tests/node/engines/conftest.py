"""Tiny models of several architectures, saved to folders as a user would have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging as transformers_logging

from node.configuration import PolicySection
from node.policy.policy import Policy

VOCABULARY = 40
EOS = 1
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": EOS,
}
CONFIGURATIONS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True),
    "llama": LlamaConfig(**_SIZES, num_key_value_heads=2),
    "llama-scaled": LlamaConfig(
        **_SIZES,
        num_key_value_heads=4,
        mlp_bias=True,
        attention_bias=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 24,
        },
    ),
    "qwen2": Qwen2Config(**_SIZES, num_key_value_heads=1),
    "neox": GPTNeoXConfig(**_SIZES),
    "neox-serial": GPTNeoXConfig(**_SIZES, use_parallel_residual=False),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=96, bos_token_id=None, eos_token_id=EOS
    ),
    "mistral-sliding": MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=6),
    "gemma3-mixed": Gemma3TextConfig(
        **_SIZES,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
    ),
}
INTERPRETED: dict[str, PretrainedConfig] = {  # for Triton's interpreter, whose time goes with layers and heads
    "qwen3-narrow": Qwen3Config(
        **{**_SIZES, "num_hidden_layers": 1}, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True
    ),
}


def save_tokenizer(folder: Path) -> None:
    """One character per token: <pad>, <eos>, then letters from '!' on."""
    vocabulary = {"<pad>": 0, "<eos>": EOS} | {chr(31 + token): token for token in range(2, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model of the named configuration; its weights are random, its distributions far from flat."""
    folders: dict[str, Path] = {}
    transformers_logging.disable_progress_bar()

    def make(name: str) -> Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp(name)
            with torch.random.fork_rng(), torch.no_grad():
                torch.manual_seed(0)
                model = AutoModelForCausalLM.from_config((CONFIGURATIONS | INTERPRETED)[name])
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.15)
            model.save_pretrained(folder)
            save_tokenizer(folder)
            folders[name] = folder
        return folders[name]

    return make


@pytest.fixture(scope="session")
def load_policy(model_folder: Callable[[str], Path]) -> Callable[..., Policy]:
    def load(name: str, **section: object) -> Policy:
        return Policy.load(PolicySection.model_validate({"model": str(model_folder(name)), **section}))

    return load
