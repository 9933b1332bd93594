"""Attention of a training pass on a CPU whose tokens are packed: those of all rows one after the other, none padded.

Prompts come first, then the completions, each of which sees its prompt and what is before it of its own:

    spans (n, 3) of token i: its prompt's first token, the one after its prompt's last, its own row's first token
    i sees j where spans[i, 0] ≤ j < spans[i, 1], or spans[i, 2] ≤ j ≤ i; a prompt's token has an empty prompt

    s_ij = c q_i·k_j     l_i = log Σ_j e^s_ij     p_ij = e^(s_ij - l_i)     o_i = Σ_j p_ij v_j
    dv_j = Σ_i p_ij do_i     ds_ij = p_ij (do_i·v_j - do_i·o_i)     dq_i = c Σ_j ds_ij k_j     dk_j = c Σ_i ds_ij q_i

Both directions do what is seen and nothing else, one pair of tokens after the other, and keep no scores: made for rows
of tens of tokens, where a call for each length costs more than what it computes. Threads of torch share the heads.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, Final

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

Array = NDArray[Any]

DTYPES: Final = (torch.float32, torch.float64)
_LOOSE: Final = {"contract", "reassoc", "nsz"}  # sums in any order, as in a library's matrix product


class AttendPacked(torch.autograd.Function):
    """``apply(query, key, value, spans, scale)`` returns what each token attends to, (n, H, d): of query (n, H, d), key
    and value (n, K, d), H a multiple of K, on a CPU in one of ``DTYPES``, and spans (n, 3) int64."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: Array, scale: float) -> Tensor:
        query, key, value = (each.contiguous() for each in (query, key, value))
        attended = torch.empty_like(query)
        logs = query.new_empty(query.shape[:2])
        q, k, v, o, of_log = (each.detach().numpy() for each in (query, key, value, attended, logs))
        _by_heads(key.shape[1], partial(_attend, q, k, v, o, of_log, spans, scale))
        ctx.save_for_backward(query, key, value, attended, logs)
        ctx.spans, ctx.scale = spans, scale
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, o, of_log = (each.numpy() for each in ctx.saved_tensors)
        of_query, of_key, of_value = (torch.zeros_like(each) for each in ctx.saved_tensors[:3])
        dq, dk, dv = (each.numpy() for each in (of_query, of_key, of_value))
        slope = slopes.contiguous().numpy()
        back = partial(_attend_back, q, k, v, o, of_log, slope, dq, dk, dv, ctx.spans, ctx.scale)
        _by_heads(k.shape[1], back)
        return of_query, of_key, of_value, None, None


def _by_heads(heads: int, work: Any) -> None:
    """Calls ``work(first, end)`` for all ``heads`` of keys, by as many threads as torch has."""
    parts = min(heads, torch.get_num_threads())
    bounds = [heads * part // parts for part in range(parts + 1)]
    if parts == 1:
        work(0, heads)
    else:
        list(_threads(parts).map(work, bounds[:-1], bounds[1:]))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "packed-attention")


@njit(nogil=True, cache=True, fastmath=_LOOSE)
def _attend(
    query: Array, key: Array, value: Array, attended: Array, logs: Array, spans: Array, scale: float, a: int, b: int
) -> None:
    tokens, heads, size = query.shape
    group = heads // key.shape[1]
    scores = np.empty(_most_seen(spans), query.dtype)
    factor = scores.dtype.type(scale)
    for i in range(tokens):
        begin, end, own = spans[i]
        before = end - begin
        seen = before + i + 1 - own
        for head in range(a * group, b * group):
            of, q, target = head // group, query[i, head], attended[i, head]
            most = scores.dtype.type(-math.inf)
            for n in range(seen):
                k = key[begin + n if n < before else own + n - before, of]
                total = scores.dtype.type(0)
                for x in range(size):
                    total += q[x] * k[x]
                scores[n] = total * factor
                most = max(most, scores[n])
            total = scores.dtype.type(0)
            target[:] = 0
            for n in range(seen):
                power = np.exp(scores[n] - most)
                total += power
                v = value[begin + n if n < before else own + n - before, of]
                for x in range(size):
                    target[x] += power * v[x]
            inverse = scores.dtype.type(1) / total
            for x in range(size):
                target[x] *= inverse
            logs[i, head] = most + np.log(total)


@njit(nogil=True, cache=True, fastmath=_LOOSE)
def _attend_back(
    query: Array, key: Array, value: Array, attended: Array, logs: Array, slopes: Array,
    of_query: Array, of_key: Array, of_value: Array, spans: Array, scale: float, a: int, b: int,
) -> None:  # fmt: skip
    tokens, heads, size = query.shape
    group = heads // key.shape[1]
    factor = logs.dtype.type(scale)
    for i in range(tokens):
        begin, end, own = spans[i]
        before = end - begin
        for head in range(a * group, b * group):
            of, q, slope, dq = head // group, query[i, head], slopes[i, head], of_query[i, head]
            mean = logs.dtype.type(0)
            for x in range(size):
                mean += slope[x] * attended[i, head, x]
            for n in range(before + i + 1 - own):
                j = begin + n if n < before else own + n - before
                k, v, dk, dv = key[j, of], value[j, of], of_key[j, of], of_value[j, of]
                score, along = logs.dtype.type(0), logs.dtype.type(0)
                for x in range(size):
                    score += q[x] * k[x]
                    along += slope[x] * v[x]
                p = np.exp(score * factor - logs[i, head])
                ds = p * (along - mean) * factor
                for x in range(size):
                    dv[x] += p * slope[x]
                    dq[x] += ds * k[x]
                    dk[x] += ds * q[x]


@njit(nogil=True, cache=True)
def _most_seen(spans: Array) -> int:
    most = 0
    for i in range(len(spans)):
        most = max(most, spans[i, 1] - spans[i, 0] + i + 1 - spans[i, 2])
    return most
