"""Keeps vLLM within the tokenizer's vocabulary, as the embedded engine and the learner are."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

VOCABULARY = "vocabulary"  # the key in vLLM's ``additional_config``: how many tokens there are


class WithinVocabulary(LogitsProcessor):  # type: ignore[misc]  # vLLM is in an environment of its own
    """Many models have more rows than their tokenizer has tokens. These logits count for nothing: no token has such an
    id, and the probabilities of the others sum to 1."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._vocabulary = int(vllm_config.additional_config[VOCABULARY])

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        logits[:, self._vocabulary :] = float("-inf")
        return logits

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Nothing here depends on who is in the batch."""
