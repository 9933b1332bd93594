"""What generating, and attention in training, should cost on cards, by arithmetic: nothing is measured.

For each model and card a line of a table.

    python -m scripts.bench.gpu.expected [--rows 256] [--prompt 512] [--own 128]

    t_card = max((weights + keys and values) / bandwidth, 2 · weights' elements · rows / products)
    t_host = layers · (3 launches of Triton + 7 of torch) + 8 of torch
    tokens/s = rows / max(t_card, t_host), and rows / t_card where steps are captured in a graph

Bandwidths and products are nine tenths and seven tenths of what makers publish. A launch's time on the host is an
estimate: 20 µs of Triton's, 6 µs of torch's.

The second table is of one layer's attention in a training pass of as many completions, forward and backward, by
lengths and as torch does it under a mask, over copies of the prompts and repeated heads. With q the queries of all
tokens, o their own keys, s the prompts', c a copy of a prompt's for each completion, j = c + o, and r = j repeated for
each query head, all in bytes, keys and values being two of each but q, and l a number for each token and head:

    by lengths, forward     2 q + 2 (o + s) + l             products    2 · pairs
                backward    8 q + 6 (o + s) + 5 l                       7 · pairs
    under a mask, forward   4 q + 4 c + 4 j + 4 r + m                   2 · tokens · columns
                  backward  4 q + 6 r + 4 j + 2 c + m                   5 · tokens · columns
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
    launched = layers * (3 * TRITON_SECONDS + 7 * TORCH_SECONDS) + 8 * TORCH_SECONDS
    return Step(computed, launched, moved)


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention in a pass, forward and backward."""

    moved_bytes: float
    flops: float
    kept_bytes: float  # for the backward pass; a mask, which all layers share, is not among it

    def seconds(self, card: Card) -> float:
        return max(self.moved_bytes / card.bytes_a_second, self.flops / card.flops)


def attention_of(
    shape: Mapping[str, Any], rows: int, prompt: int, own: int, completions: int = 8
) -> tuple[Attention, Attention]:
    """Returns attention by lengths, and under a mask."""
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    size = shape.get("head_dim") or shape["hidden_size"] // heads
    vector = BYTES * size
    q, o, c = rows * own * heads * vector, rows * own * kv_heads * vector, rows * prompt * kv_heads * vector
    s, j, logs = c / completions, c + o, 4 * rows * own * heads
    r, mask = j * heads / kv_heads, BYTES * rows * own * (prompt + own)
    one = 2 * size * heads * rows * own
    by_lengths = Attention(
        10 * q + 8 * (o + s) + 6 * logs, 9 * one * (prompt + (own + 1) / 2), 2 * q + 2 * (o + s) + logs
    )
    under_mask = Attention(8 * q + 6 * c + 8 * j + 10 * r + 2 * mask, 7 * one * (prompt + own), 2 * q + 2 * r + logs)
    return by_lengths, under_mask


def attention_table(rows: int, prompt: int, own: int) -> str:
    lines = [
        "| model | card | bytes by lengths, under a mask | products | kept a layer | time |",
        "|---|---|---|---|---|---|",
    ]
    for model, shape in MODELS.items():
        both = attention_of(shape, rows, prompt, own)
        moved = ", ".join(f"{each.moved_bytes / 1e9:.2f} GB" for each in both)
        flops = ", ".join(f"{each.flops / 1e12:.2f} T" for each in both)
        kept = ", ".join(f"{each.kept_bytes / 1e6:.0f} MB" for each in both)
        for name, card in CARDS.items():
            seconds = ", ".join(f"{1e3 * each.seconds(card):.2f} ms" for each in both)
            lines.append(f"| {model} | {name} | {moved} | {flops} | {kept} | {seconds} |")
    return "\n".join(lines)


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
    sizes = (options.rows, options.prompt, options.own)
    sys.stdout.write(f"{table(*sizes)}\n\n{attention_table(*sizes)}\n")


if __name__ == "__main__":
    main()
