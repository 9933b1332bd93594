"""One training pass over one long completion, on the CPU: whole, against layers recomputed in chunks.

The model has a published shape and random weights. Each pass runs in a new process (``contenders/long_pass``), in turn,
round after round; figures are medians over the rounds.

  memory  peak resident memory above weights, gradients and libraries: activations, and whatever comes and goes in the
          backward pass, such as the second gradient of a tied embedding. The kernel's high-water mark is set back
          (/proc/self/clear_refs) before the pass
  kept    what autograd holds between the forward and the backward pass, counted by its own hooks: activations alone
  time    forward and backward
  gradients  ‖g − g'‖ / ‖g‖ of the parameter in which they differ most

``attention`` is one layer's attention alone, in the shape of the model: 1,024 queries after 3,072 columns, by
``grouped_attention`` without a mask, and by transformers' function for torch's attention with the mask that it needs.

With ``--numerics`` it also prints how far log-probabilities in bfloat16 are from those in float32, for the same weights
(which are bfloat16 numbers), for each of five shapes with ``--numerics-layers`` layers: fewer than the models have.

    python -m scripts.bench.long_pass [--layers 6] [--tokens 4096] [--numerics] [--json]

All 24 layers of the default take 17 GB of memory, whole. Memory and time are nearly linear in the layers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from node.learner.objective.forward import Network, completion_logps
from node.learner.objective.network.attention import grouped_attention
from scripts import REPOSITORY
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.published_shapes import SHAPES, config_of
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.timing import best_seconds
from scripts.bench.contenders.long_pass import LongPass, PassReport, long_batch, random_model, with_kept_bytes

WHOLE: Final = "whole"
RECOMPUTED: Final = "recomputed"
NUMERICS_TOKENS: Final = 256
ATTENTION_QUERIES: Final = 1024
ATTENTION_COLUMNS: Final = 4096


def run_pass(asked: LongPass) -> PassReport:
    command = [sys.executable, "-m", "scripts.bench.contenders.long_pass", json.dumps(asdict(asked))]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    return PassReport(**json.loads(result.stdout.splitlines()[-1]))


def largest_difference(whole: Path, other: Path) -> float:
    """Returns ‖g − g'‖ / ‖g‖ of the parameter in which the gradients of two files differ most."""
    worst = 0.0
    with safe_open(whole, "pt") as ours, safe_open(other, "pt") as theirs:
        for name in ours.keys():  # noqa: SIM118 - not a mapping
            expected, found = ours.get_tensor(name).float(), theirs.get_tensor(name).float()
            worst = max(worst, float((found - expected).norm() / expected.norm()))
    return worst


def pass_figures(arguments: argparse.Namespace) -> list[Figure]:
    whole = LongPass(
        shape=arguments.shape,
        layers=arguments.layers,
        prompt_tokens=arguments.prompt_tokens,
        tokens=arguments.tokens,
        dtype=arguments.dtype,
        recompute=False,
        chunk_tokens=None,
        threads=arguments.threads,
        gradients=None,
    )
    asked = {WHOLE: whole, RECOMPUTED: replace(whole, recompute=True, chunk_tokens=arguments.chunk_tokens)}
    found: dict[str, list[PassReport]] = {name: [] for name in asked}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.safetensors" for name in asked}
        for number in range(arguments.rounds):
            for name, each in asked.items():
                found[name].append(run_pass(replace(each, gradients=None if number else str(files[name]))))
        difference = largest_difference(files[WHOLE], files[RECOMPUTED])
    memory = {name: statistics.median(each.extra_bytes for each in found[name]) for name in asked}
    kept = {name: statistics.median(each.kept_bytes for each in found[name]) for name in asked}
    seconds = {name: statistics.median(each.seconds for each in found[name]) for name in asked}
    figures: list[Figure] = []
    for name in asked:
        figures += [
            Figure(f"{name}: memory", memory[name] / 1e6, "MB", "lower"),
            Figure(f"{name}: kept", kept[name] / 1e6, "MB", "lower"),
            Figure(f"{name}: time", seconds[name], "s", "lower"),
            Figure(f"{name}: CPU time", statistics.median(each.cpu_seconds for each in found[name]), "s", "lower"),
        ]
    exact = "≤ 1e-4" if arguments.dtype == "float32" else "≤ 0.05"
    return [
        *figures,
        Figure("recomputed / whole: memory", memory[RECOMPUTED] / memory[WHOLE], "×", "lower", "≤ 0.2"),
        Figure("recomputed / whole: kept", kept[RECOMPUTED] / kept[WHOLE], "×", "lower", "≤ 0.2"),
        Figure("recomputed / whole: time", seconds[RECOMPUTED] / seconds[WHOLE], "×", "lower", "≤ 1.35"),
        Figure("gradients, largest relative difference", difference, "", "lower", exact),
    ]


def attention_figures(shape: str) -> list[Figure]:
    config = config_of(shape)
    heads = config["num_attention_heads"]
    shared = config.get("num_key_value_heads", heads)
    width = config.get("head_dim", config["hidden_size"] // heads)
    query = torch.randn(1, heads, ATTENTION_QUERIES, width, requires_grad=True)
    key, value = (torch.randn(1, shared, ATTENTION_COLUMNS, width, requires_grad=True) for _ in range(2))
    mask = torch.ones(ATTENTION_QUERIES, ATTENTION_COLUMNS, dtype=torch.bool).tril(
        ATTENTION_COLUMNS - ATTENTION_QUERIES
    )
    module: Any = SimpleNamespace(is_causal=True, num_key_value_groups=heads // shared)

    def ours() -> Tensor:
        return grouped_attention(module, query, key, value, None)[0].sum()

    def theirs() -> Tensor:
        return sdpa_attention_forward(module, query, key, value, mask[None, None])[0].sum()

    figures: list[Figure] = []
    forwards = {"grouped": ours, "transformers": theirs}
    seconds = best_seconds(3, *((lambda f=f: torch.autograd.grad(f(), (query, key, value))) for f in forwards.values()))
    for (name, forward), taken in zip(forwards.items(), seconds, strict=True):
        _, kept = with_kept_bytes(forward, excluded=(query, key, value))
        figures += [
            Figure(f"attention: {name}, kept beside queries, keys and values", kept / 1e6, "MB", "lower"),
            Figure(f"attention: {name}, time", 1e3 * taken, "ms", "lower"),
        ]
    return figures


@torch.no_grad()
def numerics_figures(layers: int) -> list[Figure]:
    figures: list[Figure] = []
    for shape in SHAPES:
        logps = []
        for dtype in (torch.float32, torch.bfloat16):
            network = Network.of(random_model(shape, layers, dtype))
            batch = long_batch(32, NUMERICS_TOKENS, len(network.head.weight))
            logps.append(completion_logps(network, batch)[0])
            del network
        apart = (logps[0] - logps[1]).abs()
        name = f"{shape}, {layers} layers, bfloat16 against float32: log-probability"
        figures += [
            Figure(f"{name}, mean |Δ|", float(apart.mean()), "nats", "lower"),
            Figure(f"{name}, max |Δ|", float(apart.max()), "nats", "lower"),
        ]
    return figures


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="Qwen2.5-0.5B")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--tokens", type=int, default=4096, help="of the completion")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--chunk-tokens", type=int, default=512, help="of a recomputed layer")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--numerics", action="store_true", help="also compare bfloat16 with float32")
    parser.add_argument("--numerics-layers", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures = [*pass_figures(arguments), *attention_figures(arguments.shape)]
    if arguments.numerics:
        figures += numerics_figures(arguments.numerics_layers)
    report("long_pass", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
