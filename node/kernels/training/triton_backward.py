"""Backward kernels of attention by lengths, each sum in one order, so that equal inputs give equal gradients.

With do the gradient of the output, p_ij = exp(s_ij - l_i) computed again, δ_i = do_i·o_i, r_ij = p_ij (do_i·v_j - δ_i):

    dq_i = scale Σ_j r_ij (k_j - c)      dk_j = scale Σ_i r_ij q_i      dv_j = Σ_i p_ij do_i

c is the first key that a row sees. Since Σ_j r_ij = 0, any c gives the same dq; but r is rounded to the keys' dtype,
and without c a bias that all keys share, 150 in trained models, would multiply these roundings.

``_query_slopes``  dq and δ: as the forward kernel, a block of one row's places against all keys that it sees
``_key_slopes``    dk and dv of a block of keys: a row's own over that row's queries, a prompt's over those of all
                   its completions, one after the other; in several parts, added afterwards, where prompts are few

Checked against float64 in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.kernels.training.row_lengths import Heads, RowLengths
from node.kernels.training.triton_forward import IS_AMD, lies, sizes_of, strides_of, tile
from node.kernels.triton_products import nearest, plus_product

MOST_PARTS: Final = 16  # of a prompt's completions


def query_blocks(padded: int) -> dict[str, Any]:
    columns = 16 if IS_AMD else 64 if padded <= 64 else 32
    return {"BLOCK_M": 64, "BLOCK_N": columns, "num_warps": 8 if IS_AMD else 4, "num_stages": 2}


def key_blocks(padded: int) -> dict[str, Any]:
    places = 16 if IS_AMD else 64 if padded <= 64 else 32
    return {"BLOCK_M": places, "BLOCK_N": 32 if IS_AMD else 64, "num_warps": 8, "num_stages": 2}


def parts_for(programs: int, completions: float, processors: int) -> int:
    """Returns in how many parts a prompt's completions are summed up: a power of 2, independent of the lengths."""
    parts = 1
    while parts < MOST_PARTS and programs * parts < 2 * processors and completions >= 2 * parts:
        parts *= 2
    return parts


def slopes(
    of_mixed: Tensor, mixed: Tensor, logs: Tensor, heads: Heads, rows: RowLengths, scale: float, processors: int
) -> Heads:
    """Returns the gradients of ``heads``, 0 for padding, from that of ``mixed``, both contiguous."""
    count, _, tokens, size = heads.query.shape
    kv_heads, columns = heads.keys.shape[1:3]
    sizes, deltas, of_query = sizes_of(heads), torch.empty_like(logs), torch.empty_like(mixed)
    blocks = query_blocks(sizes["PADDED"])
    grid = (triton.cdiv(logs.shape[2], blocks["BLOCK_M"]), kv_heads, count)
    _query_slopes[grid](
        *heads, mixed, of_mixed, logs, deltas, of_query,
        rows.prompt_of, rows.lengths, rows.prompt_lengths, tokens, columns, scale,
        *strides_of(*heads), **sizes, **blocks,
    )  # fmt: skip
    blocks = key_blocks(sizes["PADDED"])

    def of_keys_and_values(keys: Tensor, values: Tensor, parts: int, own: bool) -> tuple[Tensor, Tensor]:
        groups, _, width, _ = keys.shape
        dtype = torch.float32 if parts > 1 else keys.dtype
        found = keys.new_empty(2, parts, groups, width, kv_heads, size, dtype=dtype)
        grid = (triton.cdiv(width, blocks["BLOCK_N"]), kv_heads * parts, groups)
        _key_slopes[grid](
            heads.query, keys, values, of_mixed, logs, deltas, found[0], found[1],
            rows.first_rows, rows.lengths, rows.lengths if own else rows.prompt_lengths,
            tokens, columns, width, scale, *strides_of(heads.query, keys, values),
            OWN=own, KV_HEADS=kv_heads, **sizes, **blocks,
        )  # fmt: skip
        summed = found.sum(1).to(keys.dtype) if parts > 1 else found[:, 0]
        of_keys, of_values = summed.transpose(2, 3)
        return of_keys, of_values

    prompts, width = heads.prompt_keys.shape[0], heads.prompt_keys.shape[2]
    parts = parts_for(triton.cdiv(width, blocks["BLOCK_N"]) * kv_heads * prompts, count / prompts, processors)
    own = of_keys_and_values(heads.keys, heads.values, 1, True)
    shared = of_keys_and_values(heads.prompt_keys, heads.prompt_values, parts, False)
    return Heads(of_query.transpose(1, 2), *own, *shared)


@triton.jit
def _slope_over(
    query, slope, log, delta, keys, values, key_step, value_step, low, high, last, total, sums, scale,
    MASKED: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Adds Σ_j r_ij and Σ_j r_ij k_j over columns ``low`` to ``high``."""
    for at in range(low, high, BLOCK_N):
        column = at + tl.arange(0, BLOCK_N)
        key = tile(keys, column, key_step, high, SIZE, PADDED, MASKED)
        value = tile(values, column, value_step, high, SIZE, PADDED, MASKED)
        zeros = tl.zeros((query.shape[0], BLOCK_N), tl.float32)
        weights = tl.exp2(plus_product(zeros, query, tl.trans(key)) * scale - log[:, None])
        r = weights * (plus_product(zeros, slope, tl.trans(value)) - delta[:, None])
        if MASKED:
            r = tl.where(column[None, :] <= last[:, None], r, 0.0)
        rounded = nearest(r, key.dtype)
        total += tl.sum(rounded.to(tl.float32), axis=1)
        sums = plus_product(sums, rounded, key)
    return total, sums


@triton.jit(do_not_specialize=["tokens", "columns"])
def _query_slopes(
    query, keys, values, prompt_keys, prompt_values, mixed, of_mixed, logs, deltas, of_query,
    prompt_of, lengths, prompt_lengths, tokens, columns, scale,
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
    there = real[:, None] & (coordinate[None, :] < SIZE)
    from_query = query + row * q_row + (token * q_token + head * q_head)[:, None] + coordinate[None, :]
    asked = tl.load(from_query, mask=there, other=0.0)
    of_row = row * tokens * kv_heads * QUERIES * SIZE
    inside = (token * kv_heads * QUERIES + head)[:, None] * SIZE + coordinate[None, :]
    slope = tl.load(of_mixed + of_row + inside, mask=there, other=0.0)
    result = tl.load(mixed + of_row + inside, mask=there, other=0.0)
    delta = tl.sum(slope.to(tl.float32) * result.to(tl.float32), axis=1)
    at_logs = (row * kv_heads + kv_head) * tokens * QUERIES + place
    log = tl.load(logs + at_logs, mask=real, other=0.0)
    tl.store(deltas + at_logs, delta, mask=real)
    prompt = tl.load(prompt_of + row).to(tl.int64)
    length = tl.where(high > 0, tl.load(prompt_lengths + prompt), 0)
    in_twos = scale * 1.4426950408889634
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, PADDED), tl.float32)
    keys_of, values_of = keys + row * k_row + kv_head * k_head, values + row * v_row + kv_head * v_head
    prompt_keys += prompt * pk_row + kv_head * pk_head
    prompt_values += prompt * pv_row + kv_head * pv_head
    first = tl.load(tl.where(length > 0, prompt_keys, keys_of) + coordinate, mask=coordinate < SIZE, other=0.0)
    whole = length // BLOCK_N * BLOCK_N
    total, sums = _slope_over(
        asked, slope, log, delta, prompt_keys, prompt_values, pk_column, pv_column, 0, whole, last, total, sums,
        in_twos, False, SIZE, PADDED, BLOCK_N,
    )  # fmt: skip
    for part in range(2):  # what is left of the prompt, then the row's own
        own = part == 1
        total, sums = _slope_over(
            asked, slope, log, delta, tl.where(own, keys_of, prompt_keys), tl.where(own, values_of, prompt_values),
            tl.where(own, k_column, pk_column), tl.where(own, v_column, pv_column),
            tl.where(own, 0, whole), tl.where(own, high, length), tl.where(own, last, length - 1),
            total, sums, in_twos, True, SIZE, PADDED, BLOCK_N,
        )  # fmt: skip
    found = (sums - total[:, None] * first.to(tl.float32)[None, :]) * scale
    found = tl.where(real[:, None], found, 0.0)
    to_store = (token < tokens)[:, None] & (coordinate[None, :] < SIZE)
    tl.store(of_query + of_row + inside, nearest(found, of_query.dtype.element_ty), mask=to_store)


@triton.jit(do_not_specialize=["tokens", "columns", "width"])
def _key_slopes(
    query, keys, values, of_mixed, logs, deltas, of_keys, of_values, first_rows, lengths, key_lengths,
    tokens, columns, width, scale, q_row, q_head, q_token, k_row, k_head, k_column, v_row, v_head, v_column,
    OWN: tl.constexpr, KV_HEADS: tl.constexpr, QUERIES: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Program (block of keys, key-value head and part, row or prompt)."""
    group = tl.program_id(2).to(tl.int64)
    kv_head, part, parts = tl.program_id(1) % KV_HEADS, tl.program_id(1) // KV_HEADS, tl.num_programs(1) // KV_HEADS
    lowest = tl.program_id(0) * BLOCK_N
    column, coordinate = lowest + tl.arange(0, BLOCK_N), tl.arange(0, PADDED)
    length = tl.minimum(tl.load(key_lengths + group), width)
    key = tile(keys + group * k_row + kv_head * k_head, column, k_column, length, SIZE, PADDED, True)
    value = tile(values + group * v_row + kv_head * v_head, column, v_column, length, SIZE, PADDED, True)
    if OWN:
        low, high = group, group + 1
    else:
        begin, end = tl.load(first_rows + group), tl.load(first_rows + group + 1)
        low, high = (begin + (end - begin) * part // parts).to(tl.int64), begin + (end - begin) * (part + 1) // parts
        high = tl.where(lowest < length, high, low)
    before = columns - tokens
    in_twos = scale * 1.4426950408889634
    key_sums = tl.zeros((BLOCK_N, PADDED), tl.float32)
    value_sums = tl.zeros((BLOCK_N, PADDED), tl.float32)
    for row in range(low, high):
        places = (tl.minimum(tl.load(lengths + row), columns) - before) * QUERIES
        first = tl.maximum(lowest - before, 0) * QUERIES if OWN else 0
        of_row = row * tokens * KV_HEADS * QUERIES * SIZE
        at_logs = (row * KV_HEADS + kv_head) * tokens * QUERIES
        for at in range(first, places, BLOCK_M):
            place = at + tl.arange(0, BLOCK_M)
            token, head = place // QUERIES, kv_head * QUERIES + place % QUERIES
            there = (place < places)[:, None] & (coordinate < SIZE)[None, :]
            from_query = query + row * q_row + (token * q_token + head * q_head)[:, None] + coordinate[None, :]
            asked = tl.load(from_query, mask=there, other=0.0)
            inside = (token * KV_HEADS * QUERIES + head)[:, None] * SIZE + coordinate[None, :]
            slope = tl.load(of_mixed + of_row + inside, mask=there, other=0.0)
            log = tl.load(logs + at_logs + place, mask=place < places, other=0.0)
            delta = tl.load(deltas + at_logs + place, mask=place < places, other=0.0)
            zeros = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            weights = tl.exp2(plus_product(zeros, key, tl.trans(asked)) * in_twos - log[None, :])
            if OWN:
                weights = tl.where(column[:, None] <= (before + token)[None, :], weights, 0.0)
            value_sums = plus_product(value_sums, nearest(weights, slope.dtype), slope)
            r = weights * (plus_product(zeros, value, tl.trans(slope)) - delta[None, :])
            key_sums = plus_product(key_sums, nearest(r, asked.dtype), asked)
    real = (column < length)[:, None]
    to = ((part * tl.num_programs(2) + group) * width + column)[:, None] * KV_HEADS * SIZE + kv_head * SIZE
    to += coordinate[None, :]
    there = (column < width)[:, None] & (coordinate < SIZE)[None, :]
    dtype = of_keys.dtype.element_ty
    tl.store(of_keys + to, nearest(tl.where(real, key_sums * scale, 0.0), dtype), mask=there)
    tl.store(of_values + to, nearest(tl.where(real, value_sums, 0.0), dtype), mask=there)
