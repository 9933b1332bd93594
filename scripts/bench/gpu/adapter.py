"""An adapter's layer in few calls and by PEFT: both against float64, their time and their memory."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from scripts.bench.gpu.bench import Bench

FARTHER: Final = 1.25  # than PEFT's result from the exact one, at most
RESULTS: Final = ("y", "gradient of x", "gradient of A", "gradient of B")


def adapter(bench: Bench) -> None:
    from node.learner.objective.network.adapters import SUMS, use_one_call_adapters

    tokens, width, height, rank = bench.at_scale(
        tiny=(70, 64, 96, 4), quick=(2048, 3584, 18_944, 16), full=(2048, 3584, 18_944, 16)
    )
    torch.manual_seed(0)
    layer = _layer(bench.device, width, height, rank)
    bench.same("layers that go in few calls", use_one_call_adapters(layer, bench.device), 1)
    by_peft = MethodType(type(layer).forward, layer)
    x, slope = (torch.randn(tokens, size, device=bench.device).bfloat16() for size in (width, height))
    leaves = [x.requires_grad_(), layer.lora_A["default"].weight, layer.lora_B["default"].weight]

    def trained(forward: Any) -> tuple[Tensor, ...]:
        y = forward(x)
        return (y.detach(), *torch.autograd.grad(y, leaves, slope))

    exact = exact_results(layer, leaves, slope)
    for name, best, ours, peft in zip(RESULTS, exact, trained(layer), trained(by_peft), strict=True):
        off, bound = (float((each.double() - best).norm() / best.norm()) for each in (ours, peft))
        bench.figure(f"{name}, distance from float64", off, "")
        bench.figure(f"{name}, distance from float64, PEFT", bound, "")
        # Both sum factors' gradients in float32, far below what their operands are rounded to; tensor cores cut off.
        in_float32 = ours.dtype == torch.float32
        bench.check(f"{name}: distance from float64", off, FARTHER * bound + (SUMS if in_float32 else 0.0))
    del exact
    flops = 4.0 * tokens * width * height  # the matrix alone, forward and back
    size = f"{tokens} × {width} → {height}, rank {rank}, with gradients"
    for name, forward in (("in few calls", layer), ("PEFT", by_peft)):
        bench.time(f"{name}, {size}", lambda forward=forward: trained(forward), flops=flops)  # type: ignore[misc]
        memory = bench.peak_bytes_of(lambda forward=forward: trained(forward))  # type: ignore[misc]
        bench.figure(f"memory, {name}", memory, "B")


def _layer(device: torch.device, width: int, height: int, rank: int) -> Any:
    """Returns PEFT's layer over a matrix in bfloat16; neither of its factors is 0."""
    from peft.tuners.lora import Linear

    from node.policy.adapter import adapter_config

    base = torch.nn.Linear(width, height, device=device, dtype=torch.bfloat16).requires_grad_(False)
    config = adapter_config(rank)
    layer: Any = Linear(base, "default", config, r=rank, lora_alpha=config.lora_alpha)
    for factors in (layer.lora_A, layer.lora_B):
        weight = factors["default"].weight
        weight.data = torch.randn(weight.shape, device=device) / weight.shape[1] ** 0.5
    return layer.eval()


def exact_results(layer: Any, leaves: Sequence[Tensor], slope: Tensor) -> list[Tensor]:
    """Returns y and the gradients of ``leaves``, which are x, A and B, in float64."""
    from node.policy.four_bit import unpacked

    x, down, up = (each.detach().double().requires_grad_() for each in leaves)
    base = layer.base_layer
    y = functional.linear(x, unpacked(base.weight).double(), base.bias.double())
    y = y + layer.scaling["default"] * (x @ down.T) @ up.T
    return [y.detach(), *torch.autograd.grad(y, (x, down, up), slope.double())]
