"""What vLLM takes where it is the engine, in place of what the embedded engine would.

On a processor, from its start to its end, since it gives nothing back between rounds:

    process        libraries, and what compiling for the model leaves behind
    weights        w P, each matrix packed; a head that is the embedding is packed besides; as much again where all of
                   them are trained, since vLLM makes new ones as it loads them; 2 T for the bfloat16 copy of what is
                   trained, to which diffs refer, and 4 T for new weights while they are loaded
    keys, values   as configured (VLLM_CPU_KVCACHE_SPACE), however many are in use
    a pass         of ``PASS_TOKENS``, with which it tries the model at its start, and logits of ``rows`` sequences

On a card it takes ``engine.memory_share`` of it for all of this while the round generates. Main memory has room for the
weights, which wait there while the round learns, and for the bfloat16 copy. **It was never run on a card.**
"""

from __future__ import annotations

from typing import Final

from node.fit.activations import ELEMENT_BYTES, FLOAT_BYTES
from node.fit.generating import LOGIT_COPIES
from node.fit.model_sizes import ModelSizes
from node.fit.settings import MemorySettings
from node.fit.workload import VllmMemory, Workload

PROCESS_BYTES: Final = 950_000_000  # on Linux x86-64, with what compiling leaves
PASS_TOKENS: Final = 4096  # vLLM's own ``max_num_batched_tokens`` on a processor


def vllm_of(settings: MemorySettings, workload: Workload) -> VllmMemory | None:
    """Returns what vLLM is given, where it generates: a base model in 4 bits is not given to it."""
    return None if settings.four_bit else workload.vllm


def on_card(vllm: VllmMemory, is_card: bool) -> dict[str, int]:
    """Returns what generating takes of a card."""
    return {"vLLM": vllm.card_bytes} if is_card else {}


def processor_bytes(
    sizes: ModelSizes, settings: MemorySettings, vllm: VllmMemory, model_bytes: int, trained: int
) -> dict[str, int]:
    """Returns what is in main memory in every phase, by part. ``model_bytes``: of the model's weights."""
    width = ELEMENT_BYTES[settings.dtype]
    packed = model_bytes + (width * sizes.vocabulary * sizes.hidden if sizes.tied else 0)
    copies = 1 if settings.adapter_rank else 2
    layer = (2 * sizes.intermediate if sizes.gated else sizes.intermediate) + sizes.queries + 2 * sizes.keys
    one_pass = PASS_TOKENS * width * (layer + 3 * sizes.hidden)
    logits = settings.rows * sizes.vocabulary * FLOAT_BYTES * LOGIT_COPIES
    return {
        "vLLM's process": PROCESS_BYTES,
        "vLLM's weights": copies * packed + 3 * 2 * trained,
        "vLLM's keys and values": vllm.cache_bytes,
        "vLLM's passes": one_pass + logits,
    }
