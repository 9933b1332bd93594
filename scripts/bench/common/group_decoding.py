"""Completions that share a long prompt: what it costs to keep the prompt's keys and values in every row.

Both contenders are the embedded engine on one model; they differ in the layout of the cache alone
(``node/engines/cache_size.py``). ``own`` is the layout in which a joining row copies its prompt.

Beside tokens a second of wall time, tokens a second of the process's CPU time are printed: they hold where other
programs use the cores too.

What is gained in time is bounded by the keys' and values' share of the bytes and operations of a step: matrix products
cost the same in both. By default every head has keys and values of its own; with fewer (``--kv-heads``) less is gained.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from node.configuration import PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from scripts.bench.common.reporting import Figure
from scripts.bench.common.small_qwen3 import small_qwen3

COMPLETIONS: Final = 8
LAYOUTS: Final = {"own": False, "shared": True}
CLOCKS: Final = {"wall": time.perf_counter, "CPU": time.process_time}

Seconds = dict[tuple[str, int, str], list[float]]  # by layout, new tokens and clock


@dataclass(frozen=True)
class GroupShape:
    """The model's and the workload's sizes."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    prompts: int
    prompt_tokens: int
    answer_tokens: int

    def config(self, vocabulary: int) -> Qwen3Config:
        return small_qwen3(
            vocabulary=vocabulary, layers=self.layers, hidden=self.hidden, heads=self.heads, kv_heads=self.kv_heads,
            positions=self.prompt_tokens + self.answer_tokens, eos_id=None,
        )  # fmt: skip

    def requests(self, vocabulary: int, answer_tokens: int) -> list[GenerationRequest]:
        random = np.random.default_rng(0)
        return [
            GenerationRequest(random.integers(2, vocabulary, self.prompt_tokens).tolist(), COMPLETIONS, answer_tokens)
            for _ in range(self.prompts)
        ]


def measure_groups(shape: GroupShape, folder: Path, endless: TokenTable, vocabulary: int, rounds: int) -> list[Figure]:
    """``folder`` has a tokenizer of ``vocabulary`` tokens, and gets the model; ``endless`` are these tokens with an end
    that the model cannot sample."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(shape.config(vocabulary)).save_pretrained(folder)  # type: ignore[no-untyped-call]
    policy = Policy.load(PolicySection(model=str(folder), device="cpu", dtype="float32"))
    policy = replace(policy, tokens=endless)
    rows = shape.prompts * COMPLETIONS
    engines = {name: TorchEngine(policy, rows=rows, seed=0, shared_prompts=held) for name, held in LAYOUTS.items()}
    asked = {tokens: shape.requests(vocabulary, tokens) for tokens in (1, shape.answer_tokens)}
    seconds: Seconds = {(name, tokens, clock): [] for name in engines for tokens in asked for clock in CLOCKS}
    cache_bytes: dict[str, int] = {}
    for turn in range(rounds + 1):
        for name, engine in engines.items():
            for tokens, requests in asked.items():
                began = {clock: now() for clock, now in CLOCKS.items()}
                engine.generate(requests, Sampling())
                for clock, now in CLOCKS.items():
                    if turn:
                        seconds[name, tokens, clock].append(now() - began[clock])
                cache_bytes[name] = engine.cache_bytes
            engine.release()
    return _figures(shape, seconds, cache_bytes)


def _figures(shape: GroupShape, seconds: Seconds, cache_bytes: dict[str, int]) -> list[Figure]:
    figures = [Figure(f"group: {name}, cache", cache_bytes[name] / 2**20, "MiB", "lower") for name in LAYOUTS]
    ratio = cache_bytes["shared"] / cache_bytes["own"]
    figures.append(Figure("group: cache, shared / own", ratio, "×", "lower", "≤ 0.25"))
    for clock in CLOCKS:
        taken = {(name, tokens): statistics.median(seconds[name, tokens, clock]) for name, tokens, _ in seconds}
        figures += _speeds(shape, taken, clock)
    return figures


def _speeds(shape: GroupShape, seconds: dict[tuple[str, int], float], clock: str) -> list[Figure]:
    """``seconds``: by layout and new tokens."""
    rows, answer = shape.prompts * COMPLETIONS, shape.answer_tokens
    whole = {name: rows * answer / seconds[name, answer] for name in LAYOUTS}
    decoding = {name: rows * (answer - 1) / (seconds[name, answer] - seconds[name, 1]) for name in LAYOUTS}
    figures = []
    for name in LAYOUTS:
        figures += [
            Figure(f"group: {name}, prompts, {clock}", seconds[name, 1], "s", "lower"),
            Figure(f"group: {name}, prompts and answers, {clock}", whole[name], "tokens/s", "higher"),
            Figure(f"group: {name}, answers, {clock}", decoding[name], "tokens/s", "higher"),
        ]
    bar = "≥ 2" if clock == "wall" else None
    ratios = {"prompts and answers": whole, "answers": decoding}
    return figures + [
        Figure(f"group: {what}, shared / own, {clock}", speeds["shared"] / speeds["own"], "×", "higher", bar)
        for what, speeds in ratios.items()
    ]
