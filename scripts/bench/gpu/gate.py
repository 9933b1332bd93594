"""The gate of an MLP in training passes: against float64 and torch, and its time against the bytes it moves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import silu

from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.decoding import INNER

ROUNDING: Final = 2.0**-8  # of bf16, relative
NAMES: Final = ("product", "gradient of the gate", "gradient of up")


def gate(bench: Bench) -> None:
    from node.kernels.training.triton_gate import SiluGate

    def in_one_call(gates: Tensor, ups: Tensor) -> Tensor:
        result: Tensor = SiluGate.apply(gates, ups)  # type: ignore[no-untyped-call]
        return result

    _agreement(bench, in_one_call)
    _time(bench, in_one_call)


def by_torch(gates: Tensor, ups: Tensor) -> Tensor:
    return silu(gates) * ups


def _agreement(bench: Bench, in_one_call: Callable[[Tensor, Tensor], Tensor]) -> None:
    # The last block is not full, and the numbers are no multiple of 16.
    count = bench.at_scale(tiny=1500, quick=(1 << 20) + 3, full=(1 << 24) + 3)
    operands = _normal(bench, count)
    exact = _trained(by_torch, [each.double() for each in operands])
    ours, plain = (_trained(way, operands) for way in (in_one_call, by_torch))
    for name, wanted, got, by_two in zip(NAMES, exact, ours, plain, strict=True):
        error = (got.double() - wanted).abs()
        bench.check(f"{name}: error, of the largest", float(error.max() / wanted.abs().max()), ROUNDING)
        squares = (by_two.double() - wanted).square().mean()
        bench.check(f"{name}: error beside torch's", float((error.square().mean() / squares).sqrt()), 1.0)


def _time(bench: Bench, in_one_call: Callable[[Tensor, Tensor], Tensor]) -> None:
    from node.kernels.decoding import triton_mlp
    from node.kernels.training.triton_gate import gate_slopes

    rows, inner = bench.at_scale(tiny=(2, 48), quick=(4096, INNER), full=(16_384, INNER))
    copies = bench.at_scale(tiny=1, quick=2, full=2)
    sets, size = [_normal(bench, rows, inner) for _ in range(copies)], f"{rows} × {inner}"
    one = 2.0 * rows * inner  # bytes of one tensor
    into = torch.empty_like(sets[0][0])
    forward = [partial(triton_mlp.gate, gates, ups, "silu", into) for gates, ups, _ in sets]
    bench.time_each(f"forward, {size}", forward, bytes_moved=3 * one)
    backward = [partial(gate_slopes, slopes, gates, ups) for gates, ups, slopes in sets]
    bench.time_each(f"backward, {size}", backward, bytes_moved=5 * one)
    for name, way in (("in one call each", in_one_call), ("by torch", by_torch)):
        run = partial(_trained, way, sets[0])
        bench.time(f"{name}, {size}, with gradients", run, bytes_moved=8 * one)
        bench.figure(f"memory {name}, gradients included", bench.peak_bytes_of(run), "B")


def _normal(bench: Bench, *shape: int) -> list[Tensor]:
    """Returns gates, ups and the gradient of their product."""
    return [torch.randn(shape, device=bench.device).bfloat16() for _ in range(3)]


def _trained(way: Callable[[Tensor, Tensor], Tensor], operands: list[Tensor]) -> tuple[Tensor, ...]:
    """Returns the product and the gradients of gates and ups."""
    gates, ups = (each.detach().requires_grad_() for each in operands[:2])
    result = way(gates, ups)
    return (result.detach(), *torch.autograd.grad(result, (gates, ups), operands[2]))
