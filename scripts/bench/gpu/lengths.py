"""Attention of training passes: by lengths against torch, and its time against attention over copies of prompts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.decoding import HEADS, KV_HEADS, QUERIES, SIZE
from scripts.bench.gpu.expected import attention_of

DTYPES = (torch.bfloat16, torch.float16)


def lengths(bench: Bench) -> None:
    from node.kernels.training.lengths_agreement import disagreement

    shapes = bench.at_scale(tiny=((2, 16),), quick=HEADS, full=HEADS)
    for (queries, size), dtype in product(shapes, bench.at_scale(tiny=DTYPES[:1], quick=DTYPES, full=DTYPES)):
        name = f"{queries} queries of {size}, {str(dtype).removeprefix('torch.')}: against torch"
        bench.same(name, disagreement(queries, size, bench.device, dtype), None)
    _time(bench)


def _time(bench: Bench) -> None:
    from node.kernels.training.attention_by_lengths import attend_by_lengths
    from node.kernels.training.row_lengths import Heads, RowLengths

    prompts, completions, prompt, own = bench.at_scale(
        tiny=(1, 2, 20, 5), quick=(32, 8, 512, 128), full=(32, 8, 512, 128)
    )
    rows = prompts * completions

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=bench.device).bfloat16().transpose(1, 2).requires_grad_()

    query = normal(rows, own, KV_HEADS * QUERIES, SIZE)
    keys, values = (normal(rows, own, KV_HEADS, SIZE) for _ in range(2))
    prompt_keys, prompt_values = (normal(prompts, prompt, KV_HEADS, SIZE) for _ in range(2))
    prompt_of = torch.arange(prompts, device=bench.device).repeat_interleave(completions)
    held = RowLengths.of(prompt_of, torch.full_like(prompt_of, own), torch.full_like(prompt_of[:prompts], prompt))
    slope = torch.randn(rows, own, KV_HEADS * QUERIES, SIZE, device=bench.device).bfloat16()
    heads = Heads(query, keys, values, prompt_keys, prompt_values)
    seen = torch.ones(own, prompt + own, dtype=torch.bool, device=bench.device).tril(prompt)[None, None]

    def by_lengths() -> Tensor:
        return attend_by_lengths(heads, held, SIZE**-0.5)

    def under_a_mask() -> Tensor:
        key, value = (
            torch.cat([shared[prompt_of], each], 2).repeat_interleave(QUERIES, 1)
            for shared, each in ((prompt_keys, keys), (prompt_values, values))
        )
        mask = seen.expand(rows, -1, -1, -1)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)

    def trained(forward: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(forward(), heads, slope)

    shape = {"num_attention_heads": KV_HEADS * QUERIES, "num_key_value_heads": KV_HEADS, "head_dim": SIZE}
    size = f"{prompts} × {completions} rows of {prompt} + {own}"
    ways = (("by lengths", by_lengths), ("under a mask, by torch", under_a_mask))
    for work, (name, forward) in zip(attention_of(shape, rows, prompt, own, completions), ways, strict=True):
        run = trained(forward)
        bench.time(f"{name}, {size}, with gradients", run, bytes_moved=work.moved_bytes, flops=work.flops)
        bench.figure(f"memory {name}, gradients included", bench.peak_bytes_of(run), "B")
