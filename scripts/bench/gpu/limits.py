"""What this card can do: the copies and the matrix products that other times are compared with. And its host: how long
it takes to start what the card does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch

from scripts.bench.gpu.bench import Bench, largest_difference

COPY: Final = "copy"
BF16: Final = "bf16 product"
TF32: Final = "tf32 product"
STARTS: Final = 500  # at a time: fewer than a card keeps waiting


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
    _starts(bench)


def _float32_sums(bench: Bench) -> None:
    """The product that the head relies on: bf16 operands, float32 result."""
    from node.kernels.products import float32_product

    a, b = (torch.randn(300, 200, device=bench.device).bfloat16() for _ in range(2))
    error = largest_difference(float32_product(a, b.T), a.double() @ b.double().T)
    bench.check("bf16 product with a float32 result: error", error, 1e-4)


def _starts(bench: Bench) -> None:
    """Where the card waits for its host, a pass takes as long as its starts."""
    from node.kernels.decoding.triton_mlp import gate
    from node.kernels.dispatch import is_for_triton

    calls = bench.at_scale(tiny=2, quick=STARTS, full=STARTS)
    x, into = (torch.randn(64, 64, device=bench.device).bfloat16() for _ in range(2))
    works: dict[str, Callable[[], object]] = {
        "an addition": lambda: torch.add(x, x, out=into),
        "a product": lambda: torch.mm(x, x, out=into),
    }
    if is_for_triton(bench.device):
        works["a kernel of Triton's"] = lambda: gate(x, x, "silu", into)
    for name, work in works.items():
        for _ in range(calls):
            work()
        bench.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            work()
        bench.figure(f"the host starts {name} in", 1e6 * (time.perf_counter() - began) / calls, "µs")
        bench.synchronize()
