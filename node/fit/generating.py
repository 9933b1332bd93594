"""What generating takes: the engine's copies of weights, keys and values, and what one step computes.

Keys and values are what ``node.engines.cache_size`` plans for the lean decoder, which allocates by the same plan. The
engine gives them back before learning starts.
"""

from __future__ import annotations

import math
from typing import Final

from node.engines.cache_size import AttentionShape, plan_cache
from node.fit.activations import ELEMENT_BYTES, FLOAT_BYTES
from node.fit.model_sizes import ModelSizes
from node.fit.settings import MemorySettings
from node.fit.workload import Workload

PREFILL_TOKENS: Final = 8192  # padded prompt tokens in one forward pass
LOGIT_COPIES: Final = 4  # logits, log-probabilities, and what drawing a token needs, in float32
PACKED: Final = frozenset({"llama", "qwen2", "qwen3", "gpt_neox"})  # architectures of the lean decoder


def engine_bytes(sizes: ModelSizes, settings: MemorySettings) -> int:
    """Returns the engine's copies of weights that it shares with the learner."""
    if sizes.model_type not in PACKED:
        return 0
    packed = _attention_shape(sizes, settings).packed_bytes
    if settings.adapter_rank and settings.merge_adapters:
        return max(packed, ELEMENT_BYTES[settings.dtype] * sizes.layers * sizes.layer_parameters)
    return packed


def cache_bytes(sizes: ModelSizes, settings: MemorySettings, workload: Workload) -> int:
    """Returns the bytes of keys and values of one call of the engine that generates a round."""
    completions = [workload.completions] * workload.own_groups
    plan = plan_cache(settings.rows, completions, workload.prompt_tokens, workload.answer_tokens)
    return plan.bytes(_attention_shape(sizes, settings))


def generation_bytes(sizes: ModelSizes, settings: MemorySettings, workload: Workload) -> dict[str, int]:
    """Returns what generating a round needs besides the weights, by part. Grows with rows, tokens and layers."""
    width = ELEMENT_BYTES[settings.dtype]
    wanted = workload.own_groups * workload.completions
    rows = min(settings.rows, wanted)
    step = rows * (2 * sizes.intermediate + 6 * sizes.queries + 4 * sizes.hidden) * width
    begun = min(workload.own_groups, math.ceil(rows / workload.completions))
    tokens = max(workload.prompt_tokens, min(PREFILL_TOKENS, begun * workload.prompt_tokens))
    prefill = (
        tokens * width * (2 * sizes.layers * sizes.keys + 2 * sizes.intermediate + 5 * sizes.queries + 3 * sizes.hidden)
    )
    return {
        "keys and values": cache_bytes(sizes, settings, workload),
        "sampling": rows * sizes.vocabulary * FLOAT_BYTES * LOGIT_COPIES + step,
        "prompts": prefill,
    }


def _attention_shape(sizes: ModelSizes, settings: MemorySettings) -> AttentionShape:
    return AttentionShape(
        layers=sizes.layers,
        hidden=sizes.hidden,
        kv_heads=sizes.kv_heads,
        queries=sizes.heads // sizes.kv_heads,
        head_size=sizes.head_size,
        element_bytes=ELEMENT_BYTES[settings.dtype],
    )
