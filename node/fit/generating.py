"""What generating takes: the engine's copies of weights, keys and values, and what one step computes.

The formulas follow ``node.engines``: a prompt is computed once and its keys and values are held once for all rows that
continue it; rows and slots are rounded up; half as many prompts again are held as rows begin together, and a quarter
more slots where completions wait for a row. The engine gives keys and values back before learning starts.
"""

from __future__ import annotations

import math
from typing import Final

from node.fit.activations import ELEMENT_BYTES, FLOAT_BYTES
from node.fit.model_sizes import ModelSizes
from node.fit.settings import MemorySettings
from node.fit.workload import Workload

ROW_MULTIPLE: Final = 8
SLOT_MULTIPLE: Final = 32
WORTHWHILE_SLOTS: Final = 32  # saved a row, from which on prompts are held apart from rows
PREFILL_TOKENS: Final = 8192  # padded prompt tokens in one forward pass
LOGIT_COPIES: Final = 4  # logits, log-probabilities, and what drawing a token needs, in float32
PACKED: Final = frozenset({"llama", "qwen2", "qwen3", "gpt_neox"})  # architectures of the lean decoder


def engine_bytes(sizes: ModelSizes, settings: MemorySettings) -> int:
    """Returns the engine's copies of weights that it shares with the learner."""
    if sizes.model_type not in PACKED:
        return 0
    width = ELEMENT_BYTES[settings.dtype]
    packed = width * sizes.layers * sizes.hidden * (sizes.queries + 2 * sizes.keys)
    if settings.adapter_rank and settings.merge_adapters:
        return max(packed, width * sizes.layers * sizes.layer_parameters)
    return packed


def cache_bytes(sizes: ModelSizes, settings: MemorySettings, workload: Workload) -> int:
    """Returns the bytes of keys and values of one call of the engine that generates a round."""
    size, prompt, answer = workload.completions, workload.prompt_tokens, workload.answer_tokens
    wanted = workload.own_groups * size
    rows = min(settings.rows, wanted)
    together = min(workload.own_groups, math.ceil((rows - 1) / size) + 1)
    prompts = min(rows, workload.own_groups, together + together // 2)
    apart = prompt * (1 - prompts / rows) >= WORTHWHILE_SLOTS
    longest = answer if apart else prompt + answer
    slots = longest + (max(SLOT_MULTIPLE, longest // 4) if wanted > rows else 0)
    held = _rounded_up(rows, ROW_MULTIPLE) * _rounded_up(slots, SLOT_MULTIPLE)
    held += prompts * _rounded_up(prompt, SLOT_MULTIPLE) if apart else 0
    masks = sizes.kv_heads * held
    return ELEMENT_BYTES[settings.dtype] * (2 * sizes.layers * sizes.keys * held + masks)


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


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
