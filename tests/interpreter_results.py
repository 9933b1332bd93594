"""Prints what a kernel computes in Triton's interpreter, then what it computes in the lighter one: a line each.

Run as a process: within one that has made the interpreter lighter, the other one is gone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.lighter_interpreter import lighten_interpreter


@triton.jit
def doubled(x):
    return x + x


@triton.jit  # type: ignore[untyped-decorator]
def everything(halves, floats, whole, out, widened, narrowed, SIZE: tl.constexpr):
    """Conversions, broadcasting, mixed types, comparisons, reductions and a call, on ``SIZE`` numbers."""
    place = tl.arange(0, SIZE)
    half, number, count = tl.load(halves + place), tl.load(floats + place), tl.load(whole + place)
    tl.store(widened + place, half.to(tl.float32))
    tl.store(narrowed + place, number.to(tl.bfloat16))
    few = tl.arange(0, 4).to(tl.float32)
    table = few[:, None] * number[None, :] + half - 2
    table = tl.where((count[None, :] % 3 == 1) | (table > 1.0), table, -few[:, None])
    row = tl.sum(table, axis=0) + doubled(tl.max(table, axis=0)) + count // 5 + tl.exp(-tl.abs(half.to(tl.float32)))
    tl.store(out + place, row, mask=place < SIZE - tl.program_id(0) - 1)


def results() -> str:
    """One number of each of six tensors: with every bf16, then with all but those below the smallest normal one."""
    size = 1 << 16
    halves = torch.arange(size, dtype=torch.int32).to(torch.int16)
    normal = torch.where(halves & 0x7F80 == 0, 0, halves)
    bits = torch.arange(size, dtype=torch.int64) * 65_521  # from all over the float32
    normal_bits = torch.where(bits & 0x7F80_0000 == 0, 0, bits)
    whole = torch.arange(size, dtype=torch.int32) - 1000
    found = []
    for half, number in ((halves, bits), (normal, normal_bits)):
        out, widened, narrowed = torch.zeros(size), torch.zeros(size), torch.zeros(size, dtype=torch.bfloat16)
        floats = number.to(torch.int32).view(torch.float32)
        everything[(2,)](half.view(torch.bfloat16), floats, whole, out, widened, narrowed, SIZE=size)
        found += [out, widened, narrowed.float()]
    return " ".join(str(hash(each.numpy().tobytes())) for each in found)


if __name__ == "__main__":
    print(results())
    lighten_interpreter()
    print(results())
