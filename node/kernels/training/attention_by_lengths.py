"""Attention of completions to shared prompts and to themselves, by lengths, with gradients to all."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from node.kernels.training.row_lengths import Heads, RowLengths

LARGEST_HEAD: Final = 128 if torch.version.hip is None else 64  # larger ones do not fit into RDNA's registers
HEAD_MULTIPLE: Final = 8  # 16 bytes
DTYPES: Final = (torch.bfloat16, torch.float16)  # in float32 there are no tensor cores for exact products


def suits(size: int, dtype: torch.dtype) -> bool:
    """Whether there are kernels for heads of this size."""
    return size % HEAD_MULTIPLE == 0 and size <= LARGEST_HEAD and dtype in DTYPES


def attend_by_lengths(heads: Heads, rows: RowLengths, scale: float) -> Tensor:
    """Returns what is attended to, (B, T, H, d): each token to its row's prompt, and to the row's columns up to itself.

    Nothing is gathered, repeated or masked: what is kept for the backward pass is the arguments, the result, and a
    number for each token and head. Results and gradients of padding are 0. Equal arguments give equal gradients.
    """
    dense = (tensor if tensor.stride(3) == 1 else tensor.contiguous() for tensor in heads)
    found: Tensor = _ByLengths.apply(*dense, rows, scale)  # type: ignore[no-untyped-call]
    return found


class _ByLengths(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        from node.kernels.training.triton_forward import attended

        *tensors, ctx.rows, ctx.scale = arguments
        mixed, logs = attended(Heads(*tensors), ctx.rows, ctx.scale)
        ctx.save_for_backward(mixed, logs, *tensors)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mixed: Tensor) -> tuple[Tensor | None, ...]:
        from node.kernels.training.triton_backward import slopes

        mixed, logs, *tensors = ctx.saved_tensors
        processors = _processors(mixed.device)
        found = slopes(of_mixed.contiguous(), mixed, logs, Heads(*tensors), ctx.rows, ctx.scale, processors)
        return *found, None, None


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
