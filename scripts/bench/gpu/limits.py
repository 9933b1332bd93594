"""What this card can do: the copies and the matrix products that other times are compared with."""

from __future__ import annotations

from typing import Final

import torch

from scripts.bench.gpu.bench import Bench, largest_difference

COPY: Final = "copy"
BF16: Final = "bf16 product"
TF32: Final = "tf32 product"


def limits(bench: Bench) -> None:
    elements = bench.at_scale(tiny=1 << 12, quick=1 << 28, full=1 << 29)  # of bf16: 1 GiB
    source = torch.randn(elements, device=bench.device, dtype=torch.bfloat16)
    copy = torch.empty_like(source)
    seconds = bench.time(f"{COPY}, {2 * elements / 2**20:g} MiB", lambda: copy.copy_(source), bytes_moved=4 * elements)
    bench.figure(COPY, 4 * elements / seconds, "B/s")
    side = bench.at_scale(tiny=64, quick=8192, full=8192)
    for name, dtype in ((BF16, torch.bfloat16), (TF32, torch.float32)):
        torch.set_float32_matmul_precision("high" if name == TF32 else "highest")
        # Random numbers: a product of zeros takes less power and runs faster than any real one.
        a, b = (torch.randn(side, side, device=bench.device, dtype=dtype) for _ in range(2))
        seconds = bench.time(f"{name} of {side}", lambda a=a, b=b: a @ b, flops=2 * side**3)  # type: ignore[misc]
        bench.figure(name, 2 * side**3 / seconds, "FLOP/s")
    torch.set_float32_matmul_precision("highest")
    _float32_sums(bench)


def _float32_sums(bench: Bench) -> None:
    """The product that the head relies on: bf16 operands, float32 result."""
    from node.kernels.products import float32_product

    a, b = (torch.randn(300, 200, device=bench.device).bfloat16() for _ in range(2))
    error = largest_difference(float32_product(a, b.T), a.double() @ b.double().T)
    bench.check("bf16 product with a float32 result: error", error, 1e-4)
