"""Tokens a second of the embedded engine, against transformers' ``generate`` and, on request, vLLM on the CPU.

A Qwen3 shape of 0.8 M parameters with seeded random weights, 16 prompts of 8 to 40 tokens, 8 completions each, sampled
at temperature 1 from the full distribution, log-probabilities kept:
  mixed   each prompt has its own limit, 8 to 128 new tokens; end-of-sequence may be sampled; tokens count up to the
          limit or the end, whichever is first
  fixed   64 new tokens each; the model cannot sample the end-of-sequence token
  group   another Qwen3 shape, whose sizes are flags: 8 prompts of 512 tokens, 8 answers of 64 tokens each; the engine
          with each prompt's keys and values held once, against the engine with a copy of them in every row
  drafts  on request: the default swarm's tasks, answered by a built-in model, fresh and trained; the engine with
          guesses from earlier answers against the engine without (``common.draft_decoding``)
  early   on request: rounds of a learner whose engine has a process of its own; learning that begins beside it against
          learning that waits for its end (``common.early_rounds``), at several ``--early-rows``
The contenders take turns, round after round, on the same number of threads; the figures are medians over the rounds.
With ``--busy N``, N processes that compute without end run beside the counted rounds (of ``group``, beside all).

    python -m scripts.bench.engine [--workloads mixed fixed group drafts early] [--busy 8] [--against vllm] [--json]

``--against vllm`` makes a virtual environment, ``.venv-vllm`` (3.5 GB), the first time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config
from transformers.utils import logging as transformers_logging

from node.configuration import PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from scripts import REPOSITORY
from scripts.bench.common.busy import busy_processes
from scripts.bench.common.compute_process import ensure_compute_environment
from scripts.bench.common.draft_decoding import SHAPES, measure_drafts
from scripts.bench.common.early_rounds import measure_early
from scripts.bench.common.group_decoding import GroupShape, measure_groups
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.contenders.vllm_contender import vllm_worker

CHARACTERS: Final = 98  # and <pad>, <eos>: a vocabulary of 100
WORKLOADS: Final = ("mixed", "fixed", "group")
ON_REQUEST: Final = ("drafts", "early")  # take ten minutes
GROUP_SHAPE: Final = GroupShape(
    layers=8, hidden=256, heads=8, kv_heads=8, prompts=8, prompt_tokens=512, answer_tokens=64
)
PROMPTS: Final = 16
COMPLETIONS: Final = 8


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

    def job(self) -> dict[str, Any]:
        """Returns the same for vLLM's worker."""
        counts = {"prompts": self.prompts, "limits": self.limits, "completions": COMPLETIONS}
        return {"name": self.name, "model": str(self.folder), "ignore_eos": self.eos_id is None, **counts}

    def wanted(self, rows: list[list[int]]) -> int:
        """Returns how many tokens of ``rows`` (completions in order of prompts) come before each one's limit or end."""
        total = 0
        for index, row in enumerate(rows):
            kept = row[: self.limits[index // COMPLETIONS]]
            total += kept.index(self.eos_id) + 1 if self.eos_id in kept else len(kept)
        return total


def save_model(folder: Path) -> None:
    """Writes the tiny model and its character tokenizer."""
    config = Qwen3Config(
        vocab_size=CHARACTERS + 2,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]  # transformers
    model.save_pretrained(folder)
    vocabulary = {"<pad>": 0, "<eos>": 1}
    vocabulary |= {chr(0x21 + index): index + 2 for index in range(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)


def tiny_workloads(folder: Path) -> list[Workload]:
    random = np.random.default_rng(0)
    prompts = [random.integers(2, CHARACTERS + 2, size).tolist() for size in random.integers(8, 41, PROMPTS)]
    mixed = random.integers(8, 129, PROMPTS).tolist()
    save_model(folder)
    return [
        Workload("mixed", folder, prompts, mixed, eos_id=1),
        Workload("fixed", folder, prompts, [64] * PROMPTS, eos_id=None),
    ]


def endless_tokens(folder: Path) -> TokenTable:
    """Returns the model's tokens with an end-of-sequence that it cannot sample."""
    fast = PreTrainedTokenizerFast.from_pretrained(folder)
    fast.add_special_tokens({"eos_token": "<never>"})
    return TokenTable(fast)


GenerateOnce = Callable[[], float]  # generates a workload; returns tokens a second


def starling_round(work: Workload) -> GenerateOnce:
    policy = Policy.load(PolicySection(model=str(work.folder), device="cpu", dtype="float32"))
    if work.eos_id is None:
        policy = replace(policy, tokens=endless_tokens(work.folder))
    engine = TorchEngine(policy, rows=PROMPTS * COMPLETIONS, seed=0)

    def run() -> float:
        began = time.perf_counter()
        samples = engine.generate(work.requests(), Sampling())
        seconds = time.perf_counter() - began
        return work.wanted([s.token_ids.tolist() for group in samples for s in group]) / seconds

    return run


def transformers_round(work: Workload) -> GenerateOnce:
    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]  # transformers
    longest = max(len(prompt) for prompt in work.prompts)
    rows = [prompt for prompt in work.prompts for _ in range(COMPLETIONS)]
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    seen = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=max(work.limits),
        eos_token_id=work.eos_id,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )

    def run() -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(ids, attention_mask=seen, generation_config=config)
            model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
        seconds = time.perf_counter() - began
        return work.wanted(output.sequences[:, longest:].tolist()) / seconds

    return run


def vllm_round(work: Workload, generate: Callable[[], tuple[float, list[list[int]]]]) -> GenerateOnce:
    def run() -> float:
        seconds, rows = generate()
        return work.wanted(rows) / seconds

    return run


def measure(contenders: dict[str, GenerateOnce], rounds: int, busy: int) -> dict[str, float]:
    """Returns the median tokens a second of each contender; they take turns, after one uncounted round each.
    ``busy`` other processes compute beside the counted rounds."""
    for run in contenders.values():
        run()
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    with busy_processes(busy):
        for _ in range(rounds):
            for name, run in contenders.items():
                speeds[name].append(run())
    return {name: statistics.median(values) for name, values in speeds.items()}


def figures_of(work: Workload, speeds: dict[str, float]) -> list[Figure]:
    bars = {
        ("mixed", "transformers"): "≥ 3",
        ("mixed", "vllm"): "≥ 1.2",
        ("fixed", "transformers"): "≥ 1.3",
        ("fixed", "vllm"): "≥ 1.3",
    }
    figures = [Figure(f"{work.name}: {name}", speed, "tokens/s", "higher") for name, speed in speeds.items()]
    for name in speeds:
        if name != "starling":
            ratio = speeds["starling"] / speeds[name]
            figures.append(Figure(f"{work.name}: starling / {name}", ratio, "×", "higher", bars[work.name, name]))
    return figures


def main() -> None:
    ensure_compute_environment()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=["vllm"], help="also measure vLLM, in its own environment")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", choices=[*WORKLOADS, *ON_REQUEST], default=list(WORKLOADS))
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="run N processes that compute without end")
    parser.add_argument("--draft-models", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="of drafts")
    parser.add_argument("--training-rounds", type=int, default=200, help="of drafts' trained model")
    parser.add_argument("--early-rows", type=int, nargs="+", default=[32, 128], help="of early's engine")
    parser.add_argument("--apart", action="store_true", help="early: quotas of their own for learner and engine")
    sizes = parser.add_argument_group("the group workload's sizes")
    for field in fields(GroupShape):
        flag = f"--{field.name.replace('_', '-')}"
        sizes.add_argument(flag, type=int, default=getattr(GROUP_SHAPE, field.name))
    add_json_flag(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as temporary:
        works = [work for work in tiny_workloads(Path(temporary)) if work.name in arguments.workloads]
        for work in works:
            contenders = {"starling": starling_round(work), "transformers": transformers_round(work)}
            if arguments.against == "vllm":
                with vllm_worker(REPOSITORY / ".venv-vllm", work.job(), Path(temporary)) as generate:
                    contenders["vllm"] = vllm_round(work, generate)
                    figures += figures_of(work, measure(contenders, arguments.rounds, arguments.busy))
            else:
                figures += figures_of(work, measure(contenders, arguments.rounds, arguments.busy))
        if "group" in arguments.workloads:
            shape = GroupShape(**{field.name: getattr(arguments, field.name) for field in fields(GroupShape)})
            folder = Path(temporary)
            with busy_processes(arguments.busy):
                figures += measure_groups(shape, folder, endless_tokens(folder), CHARACTERS + 2, arguments.rounds)
        if "drafts" in arguments.workloads:
            with busy_processes(arguments.busy):
                models = arguments.draft_models
                figures += measure_drafts(Path(temporary), models, arguments.rounds, arguments.training_rounds)
        if "early" in arguments.workloads:
            with busy_processes(arguments.busy):
                for rows in arguments.early_rows:
                    figures += measure_early(
                        Path(temporary), CHARACTERS + 2, arguments.rounds, rows, apart=arguments.apart
                    )
    report("engine", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
