"""The gate of an MLP in a training pass on a GPU (SwiGLU), in one kernel for each direction.

    z = silu(g) ∘ u                    silu(g) = g σ      σ = 1 / (1 + e⁻ᵍ)
    dg = dz ∘ u ∘ σ (1 + g (1 − σ))    du = dz ∘ silu(g)

Kept are g and u alone: silu(g) is computed again. All is in float32 and rounded once, where separate operations round
each. The forward kernel is that of decode steps.

Checked in Triton's interpreter (``TRITON_INTERPRET=1``).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from node.kernels.decoding.triton_mlp import BLOCK, gate
from node.kernels.triton_products import nearest


class SiluGate(torch.autograd.Function):
    """``apply(gates, ups)`` returns silu(``gates``) ∘ ``ups``, all of one shape."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, ups: Tensor) -> Tensor:
        gates, ups = gates.contiguous(), ups.contiguous()
        ctx.save_for_backward(gates, ups)
        return gate(gates, ups, "silu", torch.empty_like(gates))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor]:
        return gate_slopes(slopes.contiguous(), *ctx.saved_tensors)


def gate_slopes(slopes: Tensor, gates: Tensor, ups: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of ``gates`` and ``ups`` for that of their gate, ``slopes``; all are contiguous and of one
    shape."""
    of_gates, of_ups, count = torch.empty_like(gates), torch.empty_like(ups), gates.numel()
    _gate_slopes[(triton.cdiv(count, BLOCK),)](slopes, gates, ups, of_gates, of_ups, count, BLOCK=BLOCK, num_warps=4)
    return of_gates, of_ups


# Triton knows whether ``count`` is a multiple of 16, without which the mask would cut loads of 16 bytes into numbers.
@triton.jit
def _gate_slopes(slopes, gates, ups, of_gates, of_ups, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    slope = tl.load(slopes + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(gates + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(ups + at, mask=inside, other=0.0).to(tl.float32)
    opened = tl.sigmoid(x)
    of_gate = slope * up * opened * (1.0 + x * (1.0 - opened))
    tl.store(of_gates + at, nearest(of_gate, of_gates.dtype.element_ty), mask=inside)
    tl.store(of_ups + at, nearest(slope * x * opened, of_ups.dtype.element_ty), mask=inside)
