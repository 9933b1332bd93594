"""The memory of vLLM's process on a processor: as the plan has it, and its peak as Linux reports it.

The process starts, compiles for the model, takes all weights, generates a round, takes all weights again, as after a
learner's long step, and generates again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch

from node.engines.engine import Sampling
from node.engines.vllm_backend.processor import cache_bytes
from node.fit.footprint import trained_parameters, weight_bytes
from node.fit.model_sizes import known_sizes
from node.fit.settings import MemorySettings
from node.fit.vllm import processor_bytes
from node.fit.workload import VllmMemory
from node.policy.policy import Policy
from scripts.bench.common.process_usage import process_memory
from scripts.bench.common.reporting import Figure
from scripts.bench.common.vllm_node import node_on_vllm, workload_in

BAR: Final = "within 10 %"


def vllm_figures(folder: Path, settings: MemorySettings, threads: int, home: Path) -> list[Figure]:
    """Returns the peak of vLLM's process with the model in ``folder``, measured and predicted."""
    sizes = known_sizes(folder)
    assert sizes is not None
    work = workload_in(folder, "memory")
    with node_on_vllm(folder, threads, home) as node:
        node.engine.generate(work.requests(), Sampling())
        change_all(node.policy)
        node.weights.load(2, node.policy.trainable())
        node.engine.generate(work.requests(), Sampling())
        peak = process_memory(node.process).peak
    vllm = VllmMemory(cache_bytes(os.environ))
    trained, model_bytes = trained_parameters(sizes, settings), weight_bytes(sizes, settings)
    expected = sum(processor_bytes(sizes, settings, vllm, model_bytes, trained).values())
    name = f"{folder.name}: vLLM's process"
    return [
        Figure(f"{name}, measured", peak / 1e9, "GB", "lower"),
        Figure(f"{name}, predicted", expected / 1e9, "GB", "lower"),
        Figure(f"{name}, predicted / measured - 1", 100 * (expected / peak - 1), "%", "lower", BAR),
    ]


@torch.no_grad()
def change_all(policy: Policy) -> None:
    """Changes every weight, so that all are sent again."""
    for parameter in policy.trainable().values():
        parameter.mul_(1.05)
