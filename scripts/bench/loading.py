"""The memory and the time that loading a model takes, against the size of its weights.

    python -m scripts.bench.loading [--layers 14] [--json]

The model has random weights and the shape of a small Qwen2 (284 million bytes in bfloat16 with 14 layers). Each way of
loading runs in a process of its own. Anonymous memory is the process's own; weights that are used in the dtype of the
file stay in the file's pages, which the system shares and can take back. The peak counts both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from node.configuration import PolicySection
from node.policy.model_files import BUILTIN_MODELS
from node.policy.policy import Policy
from scripts.bench.common.compute_process import ensure_compute_environment
from scripts.bench.common.process_memory import process_memory
from scripts.bench.common.reporting import Figure, add_json_flag, report

WAYS: Final = {  # the policy's dtype, an adapter's rank, 4 bits
    "bfloat16 as in the files": ("bfloat16", 0, False),
    "float32 from bfloat16": ("float32", 0, False),
    "4 bits under an adapter": ("bfloat16", 8, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.way is not None:
        print(json.dumps(measured(arguments.folder, arguments.way)))
        return
    ensure_compute_environment()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        make_model(Path(folder), arguments.layers)
        for way in WAYS:
            command = [sys.executable, "-m", "scripts.bench.loading", "--way", way, "--folder", folder]
            of_way = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            weights, anonymous, peak, seconds = of_way
            figures += [
                Figure(f"{way}: weights", weights / 1e6, "MB", "lower"),
                Figure(f"{way}: anonymous memory, of the weights", anonymous / weights, "×", "lower"),
                Figure(f"{way}: peak, of the weights", peak / weights, "×", "lower"),
                Figure(f"{way}: time", seconds, "s", "lower"),
            ]
    report("loading", figures, as_json=arguments.json)


def make_model(folder: Path, layers: int) -> None:
    config = Qwen2Config(
        vocab_size=40_000,
        hidden_size=768,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=3072,
        tie_word_embeddings=True,
    )
    model: Any = AutoModelForCausalLM
    model.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILTIN_MODELS / "wren" / name, folder)


def measured(folder: str, way: str) -> tuple[int, int, int, float]:
    """Returns bytes of the weights, anonymous bytes after loading, peak bytes during it, and seconds."""
    dtype, rank, four_bit = WAYS[way]

    def load(model: str) -> Policy:
        wanted = {"model": model, "device": "cpu", "dtype": dtype, "adapter_rank": rank, "four_bit": four_bit}
        return Policy.load(PolicySection.model_validate(wanted))

    load("builtin:wren")  # what libraries allocate once
    before = process_memory()
    began = time.perf_counter()
    policy = load(folder)
    seconds = time.perf_counter() - began
    after = process_memory()
    weights = sum(parameter.nbytes for parameter in policy.model.parameters())
    return weights, after.anonymous - before.anonymous, after.peak - before.resident, seconds


if __name__ == "__main__":
    main()
