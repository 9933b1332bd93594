"""The gated half of a decode step's MLP on a GPU, in one kernel:  activation(n Gᵀ) ∘ (n Uᵀ)  with  n = norm(x) ∘ w.

Bytes: both matrices once for each ``_ROWS`` rows of x, x once for each block of outputs. Norm, sums and activation are
in float32; n is rounded to the matrices' dtype before the products, the result once.

Checked against float64 in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.kernels.triton_products import nearest, plus_product

ACTIVATIONS: Final = ("silu", "gelu", "relu")  # names in a model's configuration; gelu is the exact one
_ROWS: Final = 64
_OUTPUTS, _INPUTS = 64, 32  # of a tile; three tiles of stages take 36 KiB of shared memory at most


def gated(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, epsilon: float, activation: str) -> Tensor:
    """Returns (n, inner) for contiguous ``x`` (n, hidden), ``norm`` (hidden,), ``gate`` and ``up`` (inner, hidden).

    The norm is x / √(mean x² + epsilon) ∘ ``norm``.
    """
    count, hidden = x.shape
    inner = gate.shape[0]
    result = torch.empty(count, inner, dtype=x.dtype, device=x.device)
    rows = min(_ROWS, max(16, triton.next_power_of_2(count)))
    _gated[(triton.cdiv(inner, _OUTPUTS), triton.cdiv(count, rows))](
        x, norm, gate, up, result, count, inner, hidden, epsilon,
        ACTIVATION=ACTIVATIONS.index(activation), ROWS=rows, OUTPUTS=_OUTPUTS, INPUTS=_INPUTS,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return result


@triton.jit
def _gated(
    x, norm, gate, up, result, count, inner, hidden, epsilon,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, INPUTS)
    x += row.to(tl.int64)[:, None] * hidden
    weights = output.to(tl.int64)[:, None] * hidden
    squares = tl.zeros((ROWS,), tl.float32)
    for at in range(0, hidden, INPUTS):
        there = (row < count)[:, None] & (at + lane < hidden)[None, :]
        part = tl.load(x + (at + lane)[None, :], mask=there, other=0.0).to(tl.float32)
        squares += tl.sum(part * part, axis=1)
    shrink = tl.rsqrt(squares / hidden + epsilon)[:, None]
    gates = tl.zeros((ROWS, OUTPUTS), tl.float32)
    ups = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for at in range(0, hidden, INPUTS):
        inside = at + lane < hidden
        part = tl.load(x + (at + lane)[None, :], mask=(row < count)[:, None] & inside[None, :], other=0.0)
        scale = tl.load(norm + at + lane, mask=inside, other=0.0).to(tl.float32)
        normed = nearest(part.to(tl.float32) * shrink * scale[None, :], gate.dtype.element_ty)
        there = (output < inner)[:, None] & inside[None, :]
        of_gate = tl.load(gate + weights + (at + lane)[None, :], mask=there, other=0.0)
        of_up = tl.load(up + weights + (at + lane)[None, :], mask=there, other=0.0)
        gates = plus_product(gates, normed, tl.trans(of_gate))
        ups = plus_product(ups, normed, tl.trans(of_up))
    if ACTIVATION == 0:
        gates = gates * tl.sigmoid(gates)
    elif ACTIVATION == 1:
        gates = 0.5 * gates * (1.0 + tl.erf(gates * 0.7071067811865476))
    else:
        gates = tl.maximum(gates, 0.0)
    there = (row < count)[:, None] & (output < inner)[None, :]
    where = row.to(tl.int64)[:, None] * inner + output[None, :]
    tl.store(result + where, nearest(gates * ups, result.dtype.element_ty), mask=there)
