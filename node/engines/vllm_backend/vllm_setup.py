"""What the learner tells a vLLM process at its start. It imports no vLLM and no torch."""

from __future__ import annotations

from typing import Any

from node.engines.process.engine_setup import ProcessSetup


class VllmSetup(ProcessSetup, frozen=True, kw_only=True):
    """The first line on the process's standard input."""

    model: str  # the model's folder
    dtype: str  # "float32" or "bfloat16"
    family: str  # of the policy, in hex
    trained: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes of the trained weights
    end_ids: tuple[int, ...]
    vocabulary: int  # tokens that may be sampled
    width: int  # of the model's logits
    rows: int  # sequences at a time, at most
    seed: int
    memory_share: float  # of the card, for weights, keys and values
    adapter: dict[str, Any] | None = None  # peft's configuration of the adapter, where one is trained
