"""Starts vLLM in this process.

Import this before anything of the project that compiles: while it starts on a CPU, vLLM looks at the attributes of all
that is imported, and fails at those of llvmlite, numba's library (vLLM 0.32).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from node.engines.vllm_backend.processor import CACHE_GIB, CACHE_VARIABLE
from node.engines.vllm_backend.vllm_setup import VllmSetup

SETTINGS: Final[Mapping[str, str]] = {  # vLLM reads them when it is imported
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: this one is the engine's own
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",  # the folder has all that there is
}
os.environ.update(SETTINGS)
os.environ.setdefault(CACHE_VARIABLE, str(CACHE_GIB))

import torch  # noqa: E402
from vllm import EngineArgs, LLMEngine  # noqa: E402

from node.engines.vllm_backend.vocabulary import VOCABULARY, WithinVocabulary  # noqa: E402


def started(setup: VllmSetup) -> LLMEngine:
    """Loads the model's folder. Prefix caching is on: a prompt is computed once for its completions, in blocks."""
    more: dict[str, Any] = {}
    if torch.cuda.is_available():
        more |= {"gpu_memory_utilization": setup.memory_share, "enable_sleep_mode": True}
    if setup.adapter is not None:
        more |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": max(8, int(setup.adapter["r"]))}
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=setup.model,
            dtype=setup.dtype,
            max_model_len=-1,  # as many as fit into the memory
            max_num_seqs=setup.rows,
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # of the distribution that is sampled from
            logits_processors=[WithinVocabulary],
            additional_config={VOCABULARY: setup.vocabulary},
            disable_log_stats=True,
            seed=setup.seed,
            **more,
        )
    )
