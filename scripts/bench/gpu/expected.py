"""What generating should cost on cards, by arithmetic: nothing is measured. For each model and card a line of a table.

    python -m scripts.bench.gpu.expected [--rows 256] [--prompt 512] [--own 128]

    t_card = max((weights + keys and values) / bandwidth, 2 · weights' elements · rows / products)
    t_host = layers · (3 launches of Triton + 4 of torch) + 8 of torch
    tokens/s = rows / max(t_card, t_host), and rows / t_card where steps are captured in a graph

Bandwidths and products are nine tenths and seven tenths of what makers publish. A launch's time on the host is an
estimate: 20 µs of Triton's, 6 µs of torch's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from scripts.bench.common.published_shapes import LARGER, SHAPES

TRITON_SECONDS, TORCH_SECONDS = 20e-6, 6e-6
BYTES: Final = 2  # of bfloat16


@dataclass(frozen=True, slots=True)
class Card:
    memory_bytes: float
    bytes_a_second: float
    flops: float  # of bf16 products


CARDS: Final[Mapping[str, Card]] = MappingProxyType(
    {
        "8 GB (RTX 4060)": Card(8e9, 0.9 * 272e9, 0.7 * 60e12),
        "24 GB (RTX 4090)": Card(24e9, 0.9 * 1008e9, 0.7 * 165e12),
        "80 GB (H100)": Card(80e9, 0.9 * 3350e9, 0.7 * 990e12),
    }
)
MODELS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"Qwen2.5-0.5B": SHAPES["Qwen2.5-0.5B"], **LARGER})


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step: seconds of the card and of the host, and what must be held."""

    card_seconds: float
    host_seconds: float
    memory_bytes: float


def step_of(shape: Mapping[str, Any], card: Card, rows: int, prompt: int, own: int, completions: int = 8) -> Step:
    """``rows`` completions of ``own`` tokens, ``completions`` after each shared prompt of ``prompt`` tokens."""
    layers, hidden, inner = shape["num_hidden_layers"], shape["hidden_size"], shape["intermediate_size"]
    size = shape.get("head_dim") or hidden // shape["num_attention_heads"]
    queries, kept = size * shape["num_attention_heads"], size * shape["num_key_value_heads"]
    elements = layers * hidden * (2 * queries + 2 * kept + 3 * inner) + hidden * shape["vocab_size"]
    cache = 2 * layers * kept * BYTES * (rows * own + rows / completions * prompt)
    moved = elements * BYTES + cache
    computed = max(moved / card.bytes_a_second, 2.0 * elements * rows / card.flops)
    launched = layers * (3 * TRITON_SECONDS + 4 * TORCH_SECONDS) + 8 * TORCH_SECONDS
    return Step(computed, launched, moved)


def table(rows: int, prompt: int, own: int) -> str:
    lines = ["| model | card | the card's work | the host's | tokens/s | in a graph |", "|---|---|---|---|---|---|"]
    for model, shape in MODELS.items():
        for name, card in CARDS.items():
            step = step_of(shape, card, rows, prompt, own)
            if step.memory_bytes > card.memory_bytes:
                lines.append(f"| {model} | {name} | does not fit: {step.memory_bytes / 1e9:.1f} GB | | | |")
                continue
            slower = max(step.card_seconds, step.host_seconds)
            lines.append(
                f"| {model} | {name} | {1e3 * step.card_seconds:.2f} ms | {1e3 * step.host_seconds:.2f} ms | "
                f"{rows / slower / 1e3:,.0f} k | {rows / step.card_seconds / 1e3:,.0f} k |"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help="completions that are generated together")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt, which 8 completions share")
    parser.add_argument("--own", type=int, default=128, help="tokens that each completion has")
    options = parser.parse_args(arguments)
    sys.stdout.write(table(options.rows, options.prompt, options.own) + "\n")


if __name__ == "__main__":
    main()
