"""A learner in shards over several processes against one process: the same losses, the same weights, less memory each.

Each process takes optimizer steps on the same batch of random tokens with the learner's own classes: the real
objective, packed prompts and completions, layers recomputed, the head in blocks. One process does all of it; then
``--processes`` do it together, over gloo. Printed are the greatest relative difference of a step's loss and of its
gradient norm, the distance of the weights as a share of the way that the steps went (root mean squares over all
weights), and the peak resident memory of each process while it learns, the process's libraries included, as a share of
the one process's.

    python -m scripts.bench.sharded [--layers 28] [--dtype bfloat16] [--json]

The default is 396 million weights in float32: 7.2 GB for one process. ``--layers 12`` has 167 million.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from scripts import REPOSITORY
from scripts.bench.common.compute_process import ensure_compute_environment
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.sharded_steps import Steps

SHAPE: Final = {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 2048,
}


def run(steps: Steps) -> list[dict[str, Any]]:
    """Returns what each process of a run printed."""
    Path(steps.meeting).unlink(missing_ok=True)
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "scripts.bench.common.sharded_steps",
                msgspec.json.encode(msgspec.structs.replace(steps, rank=rank)).decode(),
            ],
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(steps.count)
    ]
    found = []
    for process in processes:
        printed, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"a process ended with {process.returncode}")
        found.append(json.loads(printed.splitlines()[-1]))
    return found


def figures_of(one: dict[str, Any], several: list[dict[str, Any]]) -> list[Figure]:
    first = several[0]
    if any(each["steps"] != first["steps"] for each in several):
        raise SystemExit(f"the processes do not agree on their steps: {[each['steps'] for each in several]}")
    losses = max(abs(a[0] - b[0]) / abs(a[0]) for a, b in zip(one["steps"], first["steps"], strict=True))
    norms = max(abs(a[1] - b[1]) / abs(a[1]) for a, b in zip(one["steps"], first["steps"], strict=True))
    apart = max(each["apart"] / each["moved"] for each in several)
    figures = [
        Figure("weights of the model", one["parameters"] / 1e6, "million", "higher"),
        Figure("loss: greatest relative difference", losses, "", "lower", "≤ 1e-4"),
        Figure("gradient norm: greatest relative difference", norms, "", "lower", "≤ 1e-3"),
        Figure("weights: distance / way of the steps", apart, "", "lower", "≤ 1e-2"),
        Figure("one process: peak", one["peak"] / 1e9, "GB", "lower"),
        Figure("one process: libraries alone", one["libraries"] / 1e9, "GB", "lower"),
        Figure("one process: seconds a step", one["seconds"], "s", "lower"),
    ]
    for rank, each in enumerate(several):
        beyond = (each["peak"] - each["libraries"]) / (one["peak"] - one["libraries"])
        figures += [
            Figure(f"process {rank}: peak", each["peak"] / 1e9, "GB", "lower"),
            Figure(f"process {rank}: peak / one process", each["peak"] / one["peak"], "×", "lower", "≤ .6"),
            Figure(f"process {rank}: the same beyond libraries", beyond, "×", "lower"),
            Figure(f"process {rank}: peak of loading", each["loading"] / 1e9, "GB", "lower"),
            Figure(f"process {rank}: seconds a step", each["seconds"], "s", "lower"),
        ]
    return figures


def main() -> None:
    ensure_compute_environment()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=512, help="padded tokens of a pass")
    add_json_flag(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(
            rank=0,
            count=1,
            meeting=str(Path(folder) / "meeting"),
            shape=SHAPE | {"num_hidden_layers": arguments.layers},
            dtype=arguments.dtype,
            groups=4,
            completions=4,
            prompt_tokens=32,
            answer_tokens=24,
            batch_tokens=arguments.batch_tokens,
            steps=arguments.steps,
            weights=str(Path(folder) / "weights.safetensors"),
        )
        [one] = run(steps)
        several = run(msgspec.structs.replace(steps, count=arguments.processes))
    report("sharded", figures_of(one, several), as_json=arguments.json)


if __name__ == "__main__":
    main()
