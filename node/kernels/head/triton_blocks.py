"""What lies between two matrix products of the head, as one kernel each: a program holds one token's row of a block.

Checked against the torch operations in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.kernels.head.slopes import Slopes

_WARPS = 8


def fold(running: Tensor, products: Tensor, bias: Tensor | None, inverse: float) -> tuple[Tensor, Tensor]:
    """``bf16_logps.torch_fold``; ``running`` (3, n) may be strided, the products (n, v) are contiguous."""
    rows, width = products.shape
    p = torch.empty(rows, width, dtype=torch.bfloat16, device=products.device)
    decay = torch.empty(rows, 1, dtype=torch.float32, device=products.device)
    _fold[(rows,)](
        products, p, running, decay, products if bias is None else bias, running.stride(0), inverse, width,
        HAS_BIAS=bias is not None, BLOCK=_block(width), num_warps=_WARPS,
    )  # fmt: skip
    return p, decay


def slope_of(products: Tensor, bias: Tensor | None, first: int, inverse: float, slopes: Slopes) -> Tensor:
    """``bf16_logps.torch_slope_of``; the products (n, v) are contiguous."""
    rows, width = products.shape
    out = torch.empty(rows, width, dtype=torch.bfloat16, device=products.device)
    g, e = slopes.logp_grad, slopes.entropy_grad
    _slope[(rows,)](
        products, out, slopes.lse, slopes.entropies, slopes.targets,
        slopes.lse if g is None else g.contiguous(), slopes.lse if e is None else e.contiguous(),
        products if bias is None else bias, first, inverse, width,
        HAS_G=g is not None, HAS_E=e is not None, HAS_BIAS=bias is not None, BLOCK=_block(width), num_warps=_WARPS,
    )  # fmt: skip
    return out


def _block(width: int) -> int:
    return max(256, int(triton.next_power_of_2(width)))


@triton.jit
def _fold(
    products, p, running, decay, bias, stride, inverse, width,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < width
    z = tl.load(products + row * width + lane, mask=inside, other=float("-inf"))
    if HAS_BIAS:
        z += tl.load(bias + lane, mask=inside, other=0.0).to(tl.float32)
    z = z * inverse
    old_peak, old_total = tl.load(running + row), tl.load(running + stride + row)
    old_moment = tl.load(running + 2 * stride + row)
    peak = tl.maximum(old_peak, tl.max(z, axis=0))
    drop = old_peak - peak
    shrink = tl.exp(drop)
    shifted = z - peak
    weight = tl.exp(shifted)  # 0 outside
    tl.store(running + row, peak)
    tl.store(running + stride + row, old_total * shrink + tl.sum(weight, axis=0))
    moment = tl.sum(tl.where(inside, shifted, 0.0) * weight, axis=0)
    tl.store(running + 2 * stride + row, (old_moment + drop * old_total) * shrink + moment)
    tl.store(decay + row, shrink)
    tl.store(p + row * width + lane, weight.to(tl.bfloat16), mask=inside)


@triton.jit
def _slope(
    products, out, lse, entropies, targets, logp_grad, entropy_grad, bias, first, inverse, width,
    HAS_G: tl.constexpr, HAS_E: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < width
    z = tl.load(products + row * width + lane, mask=inside, other=0.0)
    if HAS_BIAS:
        z += tl.load(bias + lane, mask=inside, other=0.0).to(tl.float32)
    log_p = z * inverse - tl.load(lse + row)
    weight = tl.exp(log_p)
    slope = log_p * 0.0
    if HAS_G:
        hit = (lane + first == tl.load(targets + row)).to(tl.float32)
        slope += tl.load(logp_grad + row) * (hit - weight)
    if HAS_E:
        slope -= tl.load(entropy_grad + row) * weight * (log_p + tl.load(entropies + row))
    tl.store(out + row * width + lane, (slope * inverse).to(tl.bfloat16), mask=inside)
