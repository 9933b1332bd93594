"""What vLLM takes of a machine without a card: threads, and memory for keys and values. No vLLM, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from node.compute_environment import thread_limit

GIB: Final = 2**30
CACHE_VARIABLE: Final = "VLLM_CPU_KVCACHE_SPACE"  # vLLM's own: whole GiB of keys and values
CACHE_GIB: Final = 1  # where the variable is not set


def cache_bytes(environment: Mapping[str, str]) -> int:
    """Returns the bytes of keys and values that vLLM takes at its start, and keeps. What is no number counts as not
    set: vLLM refuses it, and says so."""
    text = environment.get(CACHE_VARIABLE, "")
    return GIB * (int(text) if text.isdigit() else CACHE_GIB)


def thread_variables(
    environment: Mapping[str, str], *, cores: int, limit: int | None, beside_learner: bool
) -> dict[str, str]:
    """Returns the variables of vLLM's threads, never more than ``environment`` says. ``limit`` is what
    ``machine.max_threads`` comes to, None where nothing is set.

    Without a limit, vLLM has all cores while the learner waits for it, and half of them where the learner computes at
    the same time (``beside_learner``). The learner's own number stays as it is.
    """
    if limit is None and beside_learner:
        limit = max(1, cores // 2)
    return thread_limit(limit, environment)
