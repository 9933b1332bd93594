"""Tokens a second of the embedded engine, against transformers' ``generate`` and, on request, vLLM on the CPU.

A Qwen3 shape of 0.8 M parameters with seeded random weights, 16 prompts of 8 to 40 tokens, 8 completions each, sampled
at temperature 1 from the full distribution, log-probabilities kept:
  mixed   each prompt has its own limit, 8 to 128 new tokens; end-of-sequence may be sampled; tokens count up to the
          limit or the end, whichever is first
  fixed   64 new tokens each; the model cannot sample the end-of-sequence token
The contenders take turns, round after round, on the same number of threads; the figures are medians over the rounds.
With ``--busy N``, N processes that compute without end run beside the counted rounds.

    python -m scripts.bench.engine [--workloads mixed fixed] [--busy 8] [--against vllm] [--json]

``--against vllm`` uses what ``starling engine install vllm`` has installed, and installs it (3.5 GB) if it is missing.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config
from transformers.utils import logging as transformers_logging

from node.configuration import PolicySection
from node.engines.torch import TorchEngine
from node.engines.vllm_backend.environment import environment_at
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from scripts.bench.common.generation_turns import COMPLETIONS, GenerateOnce, Workload, engine_round, measure, vllm_round
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.contenders.vllm_contender import vllm_worker

CHARACTERS: Final = 98  # and <pad>, <eos>: a vocabulary of 100
WORKLOADS: Final = ("mixed", "fixed")
PROMPTS: Final = 16


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


def starling_round(work: Workload) -> GenerateOnce:
    policy = Policy.load(PolicySection(model=str(work.folder), device="cpu", dtype="float32"))
    if work.eos_id is None:
        policy = replace(policy, tokens=endless_tokens(work.folder))
    return engine_round(work, TorchEngine(policy, rows=PROMPTS * COMPLETIONS, seed=0))


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
    parser = figures_parser(__doc__)
    parser.add_argument("--against", choices=["vllm"], help="also measure vLLM, in its own environment")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="run N processes that compute without end")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as temporary:
        works = [work for work in tiny_workloads(Path(temporary)) if work.name in arguments.workloads]
        for work in works:
            contenders = {"starling": starling_round(work), "transformers": transformers_round(work)}
            if arguments.against == "vllm":
                job, vllm = work.job(arguments.threads), environment_at(os.environ).folder
                with vllm_worker(vllm, job, Path(temporary)) as worker:
                    contenders["vllm"] = vllm_round(work, worker)
                    figures += figures_of(work, measure(contenders, arguments.rounds, arguments.busy))
            else:
                figures += figures_of(work, measure(contenders, arguments.rounds, arguments.busy))
    report("engine", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
