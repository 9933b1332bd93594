"""An adapter's factors and thin products in parts of bfloat16, for tensor cores.

    M = M₁ + M₂ + M₃        M₁ = bf16(M),  M₂ = bf16(M − M₁),  M₃ = M − M₁ − M₂

Three parts of 8 bits hold the 24 of a float32, so that products of bfloat16 by all parts, summed in float32, are those
of the matrix itself. Where a sum is rounded to bfloat16 anyway, three of the nine products of the parts of two matrices
suffice: M₁N₂ + M₁N₁ + M₂N₁ is within 2⁻¹⁶ of MN. So that both are one product of adjoining parts, the larger
part is there twice:

    a factor: M₃ M₂ M₁ M₁        numbers of tokens: N₁ N₁ N₂ N₃

The first three of a factor are all of it, the last three its share of the three products; of numbers of tokens it is
the other way round. Checked in Triton's interpreter.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.kernels.triton_products import nearest, plus_product

BLOCK: Final = 1024  # numbers of a program
PARTS: Final = 4  # in memory, one of them twice
ROWS: Final = 64  # and columns, of a program that adds a thin product
COLUMNS: Final = 64
INNER: Final = 64  # at most, of what it multiplies at a time


def split_factors(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the parts of ``down`` (r, in) below each other, (4 r, in), and of ``up`` (out, r) beside each other,
    (out, 4 r): bfloat16 of float32."""
    down, up = down.contiguous(), up.contiguous()
    rank = len(down)
    down_parts = torch.empty(PARTS * rank, down.shape[1], dtype=torch.bfloat16, device=down.device)
    up_parts = torch.empty(len(up), PARTS * rank, dtype=torch.bfloat16, device=up.device)
    down_programs = triton.cdiv(down.numel(), BLOCK)
    _split_factors[(down_programs + triton.cdiv(up.numel(), BLOCK),)](
        down, up, down_parts, up_parts, down.numel(), up.numel(), down_programs, RANK=rank, BLOCK=BLOCK
    )
    return down_parts, up_parts


def folded(products: Tensor, scale: float) -> Tensor:
    """Returns the parts (n, 4 r) bfloat16 of ``scale`` times the sum of the three thirds of ``products`` (n, 3 r)."""
    count, rank = len(products), products.shape[1] // 3
    parts = torch.empty(count, PARTS * rank, dtype=torch.bfloat16, device=products.device)
    _fold_parts[(triton.cdiv(count * rank, BLOCK),)](products, parts, scale, count * rank, RANK=rank, BLOCK=BLOCK)
    return parts


def add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a · b to ``into`` (n, m), which is contiguous, in place; a (n, k), b (k, m), all in bfloat16, k small.

    The sum is rounded once. cuBLAS, which adds in place too, may round the product before: of 2,048 × 18,944 on an
    H200 the result was 1.4 times as far from the exact one.
    """
    (rows, columns), inner = into.shape, a.shape[1]
    grid = triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)
    step = min(INNER, max(16, triton.next_power_of_2(inner)))
    _add_product[grid](
        into, a, b, rows, columns, *a.stride(), *b.stride(), INNER=inner, STEP=step, ROWS=ROWS, COLUMNS=COLUMNS
    )


@triton.jit(do_not_specialize=["down_size", "up_size", "down_programs"])
def _split_factors(
    down, up, down_parts, up_parts, down_size, up_size, down_programs, RANK: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    if program < down_programs:
        place = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = place < down_size
        first, second, third = _parts_of(tl.load(down + place, mask=there, other=0.0))
        _store(down_parts + place, down_size, third, second, first, first, there)
    else:
        place = (program - down_programs).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = place < up_size
        first, second, third = _parts_of(tl.load(up + place, mask=there, other=0.0))
        into = up_parts + place // RANK * (4 * RANK) + place % RANK
        _store(into, RANK, third, second, first, first, there)


@triton.jit(do_not_specialize=["size"])
def _fold_parts(products, parts, scale, size, RANK: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    row, lane = place // RANK, place % RANK
    products += row * (3 * RANK) + lane
    total = tl.load(products, mask=there, other=0.0)
    total += tl.load(products + RANK, mask=there, other=0.0)
    total += tl.load(products + 2 * RANK, mask=there, other=0.0)
    first, second, third = _parts_of(total * scale)
    _store(parts + row * (4 * RANK) + lane, RANK, first, first, second, third, there)


@triton.jit(do_not_specialize=["rows"])
def _add_product(
    into, a, b, rows, columns, a_row, a_inner, b_inner, b_column,
    INNER: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    there = (row < rows) & (column < columns)
    into += row * columns + column
    total = tl.load(into, mask=there, other=0.0).to(tl.float32)
    for begin in tl.static_range(0, INNER, STEP):
        inner = begin + tl.arange(0, STEP)
        left = tl.load(
            a + row * a_row + inner[None, :] * a_inner, mask=(row < rows) & (inner[None, :] < INNER), other=0.0
        )
        right = tl.load(
            b + inner[:, None] * b_inner + column * b_column,
            mask=(inner[:, None] < INNER) & (column < columns),
            other=0.0,
        )
        total = plus_product(total, left, right)
    tl.store(into, nearest(total, tl.bfloat16), mask=there)


@triton.jit
def _parts_of(x):
    first = nearest(x, tl.bfloat16)
    rest = x - first.to(tl.float32)
    second = nearest(rest, tl.bfloat16)
    return first, second, nearest(rest - second.to(tl.float32), tl.bfloat16)


@triton.jit
def _store(into, step, one, two, three, four, there):
    tl.store(into, one, mask=there)
    tl.store(into + step, two, mask=there)
    tl.store(into + 2 * step, three, mask=there)
    tl.store(into + 3 * step, four, mask=there)
