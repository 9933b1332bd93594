"""What contenders generate, and how they take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node.engines.engine import Engine, GenerationRequest, Sampling
from scripts.bench.common.processes import busy_processes
from scripts.bench.contenders.vllm_contender import VllmWorker

COMPLETIONS: Final = 8  # of a prompt

GenerateOnce = Callable[[], float]  # generates a workload; returns tokens a second


@dataclass(frozen=True)
class Workload:
    """``limits`` has one entry a prompt; ``folder`` holds the model and a tokenizer, whose end-of-sequence token the
    model may sample (``eos_id``) or cannot (None)."""

    name: str
    folder: Path
    prompts: list[list[int]]
    limits: list[int]
    eos_id: int | None

    def requests(self) -> list[GenerationRequest]:
        return [GenerationRequest(p, COMPLETIONS, limit) for p, limit in zip(self.prompts, self.limits, strict=True)]

    def job(self, threads: int) -> dict[str, Any]:
        """Returns the same for vLLM's worker."""
        counts = {"prompts": self.prompts, "limits": self.limits, "completions": COMPLETIONS, "threads": threads}
        return {"name": self.name, "model": str(self.folder), "ignore_eos": self.eos_id is None, **counts}

    def wanted(self, rows: list[list[int]]) -> int:
        """Returns how many tokens of ``rows`` (completions in order of prompts) come before each one's limit or end."""
        total = 0
        for index, row in enumerate(rows):
            kept = row[: self.limits[index // COMPLETIONS]]
            total += kept.index(self.eos_id) + 1 if self.eos_id in kept else len(kept)
        return total


def engine_round(work: Workload, engine: Engine) -> GenerateOnce:
    def run() -> float:
        began = time.perf_counter()
        samples = engine.generate(work.requests(), Sampling())
        seconds = time.perf_counter() - began
        return work.wanted([s.token_ids.tolist() for group in samples for s in group]) / seconds

    return run


def vllm_round(work: Workload, worker: VllmWorker) -> GenerateOnce:
    def run() -> float:
        seconds, rows = worker.generate()
        return work.wanted(rows) / seconds

    return run


def measure(contenders: Mapping[str, GenerateOnce], rounds: int, busy: int) -> dict[str, float]:
    """Returns the median tokens a second of each contender, after one uncounted round each; they take turns, in each
    round in the opposite order of the last. ``busy`` other processes compute beside the counted rounds."""
    names = list(contenders)
    for name in names:
        contenders[name]()
    speeds: dict[str, list[float]] = {name: [] for name in names}
    with busy_processes(busy):
        for _ in range(rounds):
            for name in names:
                speeds[name].append(contenders[name]())
            names.reverse()
    return {name: statistics.median(values) for name, values in speeds.items()}
