"""Forward kernel of attention by lengths.

A completion's token attends to its prompt, found through an index, and to the completion's tokens up to itself:

    o_i = Σ_j exp(s_ij - l_i) v_j,   s_ij = scale · q_i·k_j,   l_i = log Σ_j exp(s_ij)

One program takes ``BLOCK_M`` pairs of a token and one of the query heads that share a key-value head, so that keys and
values are read once for all of these heads. Softmax and sums are in float32 and online (FlashAttention-2,
arXiv 2307.08691); powers are of two, with scale / ln 2. A weight is rounded to the values' dtype before its product,
the output once more.

Checked against float64 in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.kernels.training.row_lengths import Heads, RowLengths
from node.kernels.triton_products import nearest, plus_product

IS_AMD: Final = torch.version.hip is not None


def sizes_of(heads: Heads) -> dict[str, int]:
    """Returns the kernels' constants that follow from the model."""
    size = heads.query.shape[3]
    queries = heads.query.shape[1] // heads.keys.shape[1]
    return {"QUERIES": queries, "SIZE": size, "PADDED": max(16, triton.next_power_of_2(size))}


def strides_of(*tensors: Tensor) -> list[int]:
    """Returns the strides of row, head and column of each."""
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def blocks_of(padded: int) -> dict[str, Any]:
    """Operands of products take twice the registers on RDNA's cards: a block of keys is smaller on AMD's."""
    columns = 64 if padded <= 64 else 32
    return {"BLOCK_M": 128, "BLOCK_N": columns // 2 if IS_AMD else columns, "num_warps": 8, "num_stages": 2}


def attended(heads: Heads, rows: RowLengths, scale: float) -> tuple[Tensor, Tensor]:
    """Returns what is attended to, (B, T, H, d), 0 for padding, and l / ln 2, (B, kv heads, T × queries) float32."""
    count, _, tokens, size = heads.query.shape
    kv_heads, columns = heads.keys.shape[1:3]
    sizes = sizes_of(heads)
    blocks = blocks_of(sizes["PADDED"])
    mixed = heads.query.new_empty(count, tokens, kv_heads * sizes["QUERIES"], size)
    logs = heads.query.new_empty(count, kv_heads, tokens * sizes["QUERIES"], dtype=torch.float32)
    grid = (triton.cdiv(logs.shape[2], blocks["BLOCK_M"]), kv_heads, count)
    _attend_rows[grid](
        *heads, mixed, logs, rows.prompt_of, rows.lengths, rows.prompt_lengths, tokens, columns, scale,
        *strides_of(*heads), **sizes, **blocks,
    )  # fmt: skip
    return mixed, logs


@triton.jit
def lies(row, block, lengths, tokens, columns, BLOCK: tl.constexpr, QUERIES: tl.constexpr):
    """Returns a block's places among a row's (token, query head), the own column of each, and whether it is no padding;
    and the first own column that no place of the block sees, 0 where all are padding."""
    place = block * BLOCK + tl.arange(0, BLOCK)
    length = tl.minimum(tl.load(lengths + row), columns)
    column = columns - tokens + place // QUERIES
    high = tl.minimum(length, columns - tokens + (block * BLOCK + BLOCK - 1) // QUERIES + 1)
    high = tl.where(columns - tokens + block * BLOCK // QUERIES < length, high, 0)
    return place, column, column < length, high


@triton.jit
def tile(base, index, step, high, SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Returns lines ``index`` of a matrix of vectors, ``step`` apart; 0 from line ``high`` on if ``MASKED``."""
    coordinate = tl.arange(0, PADDED)
    where = index[:, None] * step + coordinate[None, :]
    if MASKED:
        return tl.load(base + where, mask=(index < high)[:, None] & (coordinate < SIZE)[None, :], other=0.0)
    elif SIZE != PADDED:
        return tl.load(base + where, mask=(coordinate < SIZE)[None, :], other=0.0)
    else:
        return tl.load(base + where)


@triton.jit
def _over(
    query, keys, values, key_step, value_step, low, high, last, highest, total, mixed, scale,
    MASKED: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Continues a softmax over columns ``low`` to ``high``; with ``MASKED`` each query ends with its ``last`` one."""
    for at in range(low, high, BLOCK_N):
        column = at + tl.arange(0, BLOCK_N)
        key = tile(keys, column, key_step, high, SIZE, PADDED, MASKED)
        value = tile(values, column, value_step, high, SIZE, PADDED, MASKED)
        scores = plus_product(tl.zeros((query.shape[0], BLOCK_N), tl.float32), query, tl.trans(key))
        if MASKED:
            scores = tl.where(column[None, :] <= last[:, None], scores, float("-inf"))
        peak = tl.maximum(highest, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - peak[:, None])
        shrink = tl.exp2(highest - peak)
        total = total * shrink + tl.sum(weights, axis=1)
        mixed = plus_product(mixed * shrink[:, None], nearest(weights, value.dtype), value)
        highest = peak
    return highest, total, mixed


@triton.jit(do_not_specialize=["tokens", "columns"])
def _attend_rows(
    query, keys, values, prompt_keys, prompt_values, mixed, logs, prompt_of, lengths, prompt_lengths,
    tokens, columns, scale,
    q_row, q_head, q_token, k_row, k_head, k_column, v_row, v_head, v_column,
    pk_row, pk_head, pk_column, pv_row, pv_head, pv_column,
    QUERIES: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Program (block of places, key-value head, row)."""
    block, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    kv_heads = tl.num_programs(1)
    place, last, real, high = lies(row, block, lengths, tokens, columns, BLOCK_M, QUERIES)
    token, head = place // QUERIES, kv_head * QUERIES + place % QUERIES
    coordinate = tl.arange(0, PADDED)
    inside = coordinate[None, :] < SIZE
    from_query = query + row * q_row + (token * q_token + head * q_head)[:, None] + coordinate[None, :]
    asked = tl.load(from_query, mask=real[:, None] & inside, other=0.0)
    prompt = tl.load(prompt_of + row).to(tl.int64)
    length = tl.where(high > 0, tl.load(prompt_lengths + prompt), 0)
    scale = scale * 1.4426950408889634
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, PADDED), tl.float32)
    keys_of, values_of = keys + row * k_row + kv_head * k_head, values + row * v_row + kv_head * v_head
    prompt_keys += prompt * pk_row + kv_head * pk_head
    prompt_values += prompt * pv_row + kv_head * pv_head
    whole = length // BLOCK_N * BLOCK_N
    highest, total, sums = _over(
        asked, prompt_keys, prompt_values, pk_column, pv_column, 0, whole, last, highest, total, sums, scale,
        False, SIZE, PADDED, BLOCK_N,
    )  # fmt: skip
    for part in range(2):  # what is left of the prompt, then the row's own: the same code, compiled once
        own = part == 1
        highest, total, sums = _over(
            asked, tl.where(own, keys_of, prompt_keys), tl.where(own, values_of, prompt_values),
            tl.where(own, k_column, pk_column), tl.where(own, v_column, pv_column),
            tl.where(own, 0, whole), tl.where(own, high, length), tl.where(own, last, length - 1),
            highest, total, sums, scale, True, SIZE, PADDED, BLOCK_N,
        )  # fmt: skip
    result = tl.where(real[:, None], sums / tl.where(real, total, 1.0)[:, None], 0.0)
    there = token < tokens
    to_mixed = mixed + row * tokens * kv_heads * QUERIES * SIZE + (token * kv_heads * QUERIES + head)[:, None] * SIZE
    tl.store(to_mixed + coordinate[None, :], nearest(result, mixed.dtype.element_ty), mask=there[:, None] & inside)
    to_logs = logs + (row * kv_heads + kv_head) * tokens * QUERIES + place
    tl.store(to_logs, tl.where(real, highest + tl.log2(tl.where(real, total, 1.0)), 0.0), mask=there)
