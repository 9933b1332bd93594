"""``keyed_draw`` on a GPU: one kernel for maxima and sums of the blocks, one that chooses; nothing else is launched.

Bytes: the logits once, 8 bytes a block, and one block of each row again.

Checked against the torch path in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.kernels.drawing.draw_keys import BLOCK, BLOCK_DRAWS, DrawKeys

_WARPS = 8
_LEAST_WIDTH = 32 * _WARPS  # one element a thread


def draw_on_device(logits: Tensor, temperature: float, keys: DrawKeys) -> tuple[Tensor, Tensor]:
    """``keyed_draw`` for logits (n, V) whose rows are contiguous; others are copied first."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, vocabulary = logits.shape
    width = min(BLOCK, max(_LEAST_WIDTH, triton.next_power_of_2(vocabulary)))
    blocks = triton.cdiv(vocabulary, width)
    inverse = 1.0 / temperature if temperature else 1.0
    peaks = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(peaks)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logps = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        _block_sums[(rows, blocks)](
            logits, peaks, sums, logits.stride(0), vocabulary, blocks, inverse, BLOCK=width, num_warps=_WARPS
        )
        _choose[(rows,)](
            logits, peaks, sums, keys.seed, keys.completions, keys.steps, tokens, logps,
            logits.stride(0), vocabulary, blocks, inverse,
            GREEDY=temperature == 0, BLOCKS=max(16, triton.next_power_of_2(blocks)), BLOCK=width,
            BLOCK_DRAWS=BLOCK_DRAWS, num_warps=_WARPS,
        )  # fmt: skip
    return tokens, logps


@triton.jit
def _block_sums(logits, peaks, sums, stride, vocabulary, blocks, inverse, BLOCK: tl.constexpr):
    """Writes the maximum of z / T of one block of one row, and Σ exp(z / T − maximum)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row * stride + place, mask=place < vocabulary, other=float("-inf")).to(tl.float32) * inverse
    peak = tl.max(z, axis=0)
    shift = tl.where(peak == float("-inf"), 0.0, peak)  # a block of −∞ alone sums to 0
    tl.store(peaks + row * blocks + block, peak)
    tl.store(sums + row * blocks + block, tl.sum(tl.exp(z - shift), axis=0))


@triton.jit
def _choose(
    logits, peaks, sums, seed, completions, steps, tokens, logps,
    stride, vocabulary, blocks, inverse,
    GREEDY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_DRAWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, BLOCKS)
    there = each < blocks
    block_peaks = tl.load(peaks + row * blocks + each, mask=there, other=float("-inf"))
    peak = tl.max(block_peaks, axis=0)
    masses = tl.load(sums + row * blocks + each, mask=there, other=0.0) * tl.exp(block_peaks - peak)
    key = tl.load(seed)
    completion, step = tl.load(completions + row), tl.load(steps + row)
    if GREEDY:
        block = tl.argmax(block_peaks, axis=0)
    else:
        exponentials = _exponentials(key, each.to(tl.uint32) + BLOCK_DRAWS, step, completion)
        block = tl.argmax(_positive(masses) / exponentials, axis=0)
    lane = tl.arange(0, BLOCK)
    place = block * BLOCK + lane
    z = tl.load(logits + row * stride + place, mask=place < vocabulary, other=float("-inf")).to(tl.float32) * inverse
    if GREEDY:
        winner = tl.argmax(z, axis=0)
    else:
        weights = _positive(tl.exp(z - tl.max(z, axis=0)))
        winner = tl.argmax(weights / _exponentials(key, place.to(tl.uint32), step, completion), axis=0)
    chosen = tl.sum(tl.where(lane == winner, z, 0.0), axis=0)
    logp = chosen - peak - tl.log(tl.sum(masses, axis=0))
    tl.store(tokens + row, tl.minimum(block * BLOCK + winner, vocabulary - 1).to(tl.int64))
    tl.store(logps + row, tl.where(logp > 0, 0.0, logp))


@triton.jit
def _positive(weights):
    """The weights, 0 in place of a NaN, which would win no race and lose none."""
    return tl.where(weights > 0, weights, 0.0)


@triton.jit
def _exponentials(key, counters, step, completion):
    """Exponentials of rate 1, one for each counter; see ``keyed_draw``."""
    zero = counters * 0
    c1 = zero + (step & 0xFFFFFFFF).to(tl.uint32)
    c2 = zero + (completion & 0xFFFFFFFF).to(tl.uint32)
    c3 = zero + ((completion >> 32) & 0xFFFFFFFF).to(tl.uint32)
    low, high, _, _ = tl.philox(key, counters, c1, c2, c3)
    u = high.to(tl.float32) * 2.3283064365386963e-10 + (low.to(tl.float32) + 0.5) * 5.421010862427522e-20
    u = tl.minimum(u, 0.99999994)  # 1 - 2^-24
    series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))
    return tl.where(u < 0.03125, series, -tl.log(1.0 - u))
