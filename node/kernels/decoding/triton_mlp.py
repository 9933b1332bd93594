"""The gate of an MLP on a GPU:  activation(g) ∘ u  for the products g and u, in one kernel.

Decode steps take it, and training passes, whose backward kernel is in ``node.kernels.training.triton_gate``. The
products are torch's: on an H200 a kernel of our own for norm, both products and this took 31 µs for 256 rows of
Qwen2.5-0.5B, where all four apart take 19 (``docs/gpu.md``). Computed in float32, rounded once.

Checked against float64 in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from node.kernels.triton_products import nearest

ACTIVATIONS: Final = ("silu", "gelu", "relu")  # names in a model's configuration; gelu is the exact one
BLOCK: Final = 1024  # 16 bytes a thread of each bfloat16 operand: one load


def gate(gates: Tensor, ups: Tensor, activation: str, into: Tensor | None = None) -> Tensor:
    """Writes activation(``gates``) ∘ ``ups`` ``into`` that tensor, by default ``gates``, and returns it. All are
    contiguous and of one shape."""
    into, count = gates if into is None else into, gates.numel()
    _gate[(triton.cdiv(count, BLOCK),)](
        gates, ups, into, count, ACTIVATION=ACTIVATIONS.index(activation), BLOCK=BLOCK, num_warps=4
    )
    return into


@triton.jit
def _gate(gates, ups, into, count, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(gates + at, mask=at < count, other=0.0).to(tl.float32)
    up = tl.load(ups + at, mask=at < count, other=0.0).to(tl.float32)
    if ACTIVATION == 0:
        x = x * tl.sigmoid(x)
    elif ACTIVATION == 1:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        x = tl.maximum(x, 0.0)
    tl.store(into + at, nearest(x * up, into.dtype.element_ty), mask=at < count)
