"""Rounding, and products of what tensor cores multiply (float16, bfloat16, float32), within a Triton kernel.

Triton's interpreter multiplies the bit patterns of bfloat16 as if they were numbers, and rounds to bfloat16 towards 0.
There, products are of float32, which is the same, because those of bfloat16 are exact in it; and what is rounded is
first rounded to the nearest in float32, which is what GPUs do. What is too small for a normal number is 0 there.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

INTERPRETED: Final = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def nearest(x, dtype: tl.constexpr):
    """Returns float32 ``x`` in ``dtype``, rounded to the nearest, of two equally near to the even one."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        x = tl.where(tl.abs(x) < 2.0**-126, 0.0, bits.to(tl.float32, bitcast=True))
    return x.to(dtype)


@triton.jit
def plus_product(total, left, right):
    """Returns ``total`` + ``left`` ``right``, summed in float32; float32 is not rounded to a shorter format."""
    if INTERPRETED:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total, input_precision="ieee")
