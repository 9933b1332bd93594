"""The rotation of queries and keys in a training pass on a GPU, in one kernel for each direction.

    y₁ = x₁ cos₁ − x₂ sin₁      y₂ = x₂ cos₂ + x₁ sin₂      x₁, x₂: the two halves of a head's coordinates, as in
    dx₁ = dy₁ cos₁ + dy₂ sin₂   dx₂ = dy₂ cos₂ − dy₁ sin₁    transformers

Each program takes a few tokens with all of their heads. Products and sums are in float32 and rounded once, where
separate operations round each.

Checked in Triton's interpreter (``TRITON_INTERPRET=1``); on an H200 with one token a program (``docs/gpu.md``).
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.kernels.triton_products import nearest

TILE: Final = 2048  # numbers of the half of the queries that a program takes


class RotateBoth(torch.autograd.Function):
    """``apply(queries, keys, cos, sin)`` returns both rotated: (B, heads, T, size) each, with ``cos`` and ``sin``
    (B or 1, T, size), which get no gradient."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        return both_rotated(queries, keys, cos, sin, back=False)

    @staticmethod
    def backward(ctx: Any, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return *both_rotated(queries, keys, cos, sin, back=True), None, None


def both_rotated(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> tuple[Tensor, Tensor]:
    """Returns queries and keys turned by their angles, or ``back``. Arguments as of ``RotateBoth``."""
    queries, keys = (each if each.stride(-1) == 1 else each.contiguous() for each in (queries, keys))
    batch, query_heads, tokens, size = queries.shape
    kv_heads = keys.shape[1]
    # The heads of a token side by side, as the projections that they come from have them.
    new_queries = queries.new_empty(batch, tokens, query_heads, size).transpose(1, 2)
    new_keys = keys.new_empty(batch, tokens, kv_heads, size).transpose(1, 2)
    padded_queries, padded = triton.next_power_of_2(query_heads), triton.next_power_of_2(size // 2)
    block = max(1, TILE // (padded_queries * padded))
    _rotate[(triton.cdiv(batch * tokens, block),)](
        queries, keys, new_queries, new_keys, cos, sin,
        *queries.stride()[:3], *keys.stride()[:3], batch * tokens, tokens, tokens if len(cos) > 1 else 0,
        BACK=back, QUERIES=query_heads, KEYS=kv_heads, PADDED_QUERIES=padded_queries,
        PADDED_KEYS=triton.next_power_of_2(kv_heads), HALF=size // 2, PADDED=padded, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return new_queries, new_keys


@triton.jit(do_not_specialize=["count", "tokens", "angle_tokens"])
def _rotate(
    queries, keys, new_queries, new_keys, cos, sin,
    query_row, query_head, query_token, key_row, key_head, key_token, count, tokens, angle_tokens,
    BACK: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PADDED_QUERIES: tl.constexpr,
    PADDED_KEYS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # of the tokens of all rows
    row, token = number // tokens, number % tokens
    lane = tl.arange(0, PADDED)
    angle = ((row * angle_tokens + token) * 2 * HALF)[:, None] + lane[None, :]
    inside = (number < count)[:, None] & (lane < HALF)[None, :]
    cos_1 = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)[:, None, :]
    cos_2 = tl.load(cos + angle + HALF, mask=inside, other=0.0).to(tl.float32)[:, None, :]
    sin_1 = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)[:, None, :]
    sin_2 = tl.load(sin + angle + HALF, mask=inside, other=0.0).to(tl.float32)[:, None, :]
    if BACK:
        sin_1, sin_2 = -sin_2, -sin_1
    _heads(
        queries, row * query_row + token * query_token, query_head, new_queries, number, inside,
        cos_1, cos_2, sin_1, sin_2, QUERIES, PADDED_QUERIES, HALF, PADDED,
    )  # fmt: skip
    _heads(
        keys, row * key_row + token * key_token, key_head, new_keys, number, inside,
        cos_1, cos_2, sin_1, sin_2, KEYS, PADDED_KEYS, HALF, PADDED,
    )  # fmt: skip


@triton.jit
def _heads(
    x, begin, stride, into, number, inside, cos_1, cos_2, sin_1, sin_2,
    HEADS: tl.constexpr, PADDED_HEADS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Rotates the heads that begin at ``x`` + ``begin`` for each token."""
    each, lane = tl.arange(0, PADDED_HEADS)[None, :, None], tl.arange(0, PADDED)[None, None, :]
    there = inside[:, None, :] & (each < HEADS)
    x += begin[:, None, None] + each * stride + lane
    first = tl.load(x, mask=there, other=0.0).to(tl.float32)
    second = tl.load(x + HALF, mask=there, other=0.0).to(tl.float32)
    into += (number[:, None, None] * HEADS + each) * 2 * HALF + lane
    tl.store(into, nearest(first * cos_1 - second * sin_1, into.dtype.element_ty), mask=there)
    tl.store(into + HALF, nearest(second * cos_2 + first * sin_2, into.dtype.element_ty), mask=there)
