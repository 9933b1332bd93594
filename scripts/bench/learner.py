"""The learner's head: log-probability and entropy of each token, forward and backward, float32, on the CPU.

  trained  vocabulary 151,936, 16 × 256 tokens, hidden 256; gradients to hidden states and head
  frozen   the same with a head that is not trained, as under an adapter
  small    vocabulary 100, 1,000 tokens, hidden 128: the built-in models

Memory is the peak above that of inputs and libraries, gradients included. Each pass over the large vocabulary runs in a
new process; the contenders take turns, round after round; figures are medians over the rounds. ``chunks`` is plain
torch, one sequence at a time with recomputation. The benchmark fails unless all compute the same.

    python -m scripts.bench.learner [--against trl] [--json]

``--against trl`` makes a virtual environment, ``.venv-trl`` (1.5 GB), the first time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

import torch

from node.kernels.linear_logp import linear_logps
from scripts import REPOSITORY
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.contenders.environments import TRL_PYTHON, prepare_trl
from scripts.bench.contenders.learner_head import Head, plain

SMALL: Final = (1000, 100, 128)  # tokens, vocabulary, hidden
SMALL_CALLS: Final = 200
AGREEMENT: Final = 1e-3


@dataclass(frozen=True)
class HeadPass:
    """One forward and backward pass, as ``learner_head`` reports it."""

    seconds: float
    cpu_seconds: float
    extra_bytes: int
    sums: list[float]


def run_pass(contender: str, mode: str, threads: int) -> HeadPass:
    python = str(TRL_PYTHON) if contender == "trl" else sys.executable
    command = [python, "-m", "scripts.bench.contenders.learner_head", contender, mode, str(threads)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    return HeadPass(**json.loads(result.stdout.splitlines()[-1]))


def large_figures(mode: str, contenders: list[str], rounds: int, threads: int) -> list[Figure]:
    passes: dict[str, list[HeadPass]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in contenders:
            passes[name].append(run_pass(name, mode, threads))
    reference = passes["starling"][0].sums
    for name in contenders:
        for got, expected in zip(passes[name][0].sums, reference, strict=True):
            if abs(got - expected) > AGREEMENT * abs(expected):
                raise RuntimeError(f"{name} computed {passes[name][0].sums}, starling {reference}")
    seconds = {name: statistics.median(p.seconds for p in passes[name]) for name in contenders}
    memory = {name: statistics.median(p.extra_bytes for p in passes[name]) for name in contenders}
    figures: list[Figure] = []
    for name in contenders:
        figures += [
            Figure(f"{mode}: {name} memory", memory[name] / 1e6, "MB", "lower"),
            Figure(f"{mode}: {name} time", seconds[name], "s", "lower"),
            Figure(f"{mode}: {name} CPU time", statistics.median(p.cpu_seconds for p in passes[name]), "s", "lower"),
        ]
    for name in contenders[1:]:
        bar = {"trl": "≤ 0.25", "chunks": "≤ 1"}[name] if mode == "trained" else None
        figures += [
            Figure(f"{mode}: starling / {name} memory", memory["starling"] / memory[name], "×", "lower", bar),
            Figure(f"{mode}: starling / {name} time", seconds["starling"] / seconds[name], "×", "lower", bar),
        ]
    return figures


def small_figures() -> list[Figure]:
    """Measures the head of the built-in models: medians of many calls, the two contenders in turn."""
    tokens, vocabulary, width = SMALL
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocabulary, width).mul_(0.1).requires_grad_()
    targets, advantages = torch.randint(vocabulary, (tokens,)), torch.randn(tokens)
    heads: dict[str, Head] = {"starling": linear_logps, "plain torch": plain}
    seconds: dict[str, list[float]] = {name: [] for name in heads}
    for _ in range(SMALL_CALLS):
        for name, head in heads.items():
            began = time.perf_counter()
            torch.autograd.grad(head(hidden, weight, targets)[0], (hidden, weight), advantages)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    figures = [Figure(f"small: {name} time", 1e3 * value, "ms", "lower") for name, value in medians.items()]
    ratio = medians["starling"] / medians["plain torch"]
    return [*figures, Figure("small: starling / plain torch time", ratio, "×", "lower", "≤ 1.2")]


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("--against", choices=["trl"], help="also measure TRL's fused head, in its own environment")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    contenders = ["starling", "chunks"]
    if arguments.against == "trl":
        prepare_trl()
        contenders.append("trl")
    figures: list[Figure] = []
    for mode in ("trained", "frozen"):
        figures += large_figures(mode, contenders, arguments.rounds, arguments.threads)
    report("learner", [*figures, *small_figures()], as_json=arguments.json)


if __name__ == "__main__":
    main()
