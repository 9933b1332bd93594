"""Attention over one part of the past, with what is needed to join it to attention over another part.

    l_p = log Σ_{i in p} exp(q·k_i / √d)        o_p = Σ_{i in p} exp(q·k_i / √d - l_p) v_i
    over both parts: o = σ(l_1 - l_2) o_1 + σ(l_2 - l_1) o_2

B batches of N queries each, which see the same P keys; a mask of 0 and -inf says which, alike for a batch's queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

MASK_ALIGNMENT: Final = 8  # values: 16 bytes in bfloat16


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """P keys and values of each of B batches; every query of a batch sees at least one of them."""

    keys: Tensor  # (B, P, size)
    values: Tensor  # (B, P, size)
    mask: Tensor  # (B, 1, P) 0 or -inf
    masked: bool  # whether the mask has a -inf


# queries (B, N, size) → o (B, N, size) in the queries' dtype, l (B, N, 1) in float32.
Attention = Callable[[Tensor, Past], tuple[Tensor, Tensor]]


def aligned_down(slot: int, device: torch.device) -> int:
    """Returns the slot at or before ``slot`` with which a mask's window may begin: kernels of GPUs read masks by
    ``MASK_ALIGNMENT`` values, and refuse a window that begins between two such steps."""
    return slot if device.type == "cpu" else slot - slot % MASK_ALIGNMENT


def empty_mask(rows: int, kv_heads: int, slots: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns zeros (rows, kv heads, slots); each row begins at a multiple of ``MASK_ALIGNMENT`` values."""
    stride = -(-slots // MASK_ALIGNMENT) * MASK_ALIGNMENT
    return torch.zeros((rows, kv_heads, stride), dtype=dtype, device=device)[:, :, :slots]


def scores_of(queries: Tensor, past: Past) -> Tensor:
    """Returns q·k / √d, masked, (B, N, P) in float32: scores in the hundreds, as biases of keys make them, would be
    rounded to whole units in bfloat16."""
    scale = queries.shape[-1] ** -0.5
    keys = past.keys.transpose(1, 2).float()
    return torch.baddbmm(past.mask.float(), queries.float(), keys, beta=1 if past.masked else 0, alpha=scale)


def by_products(queries: Tensor, past: Past) -> tuple[Tensor, Tensor]:
    """Two matrix products; scores and the softmax between them are in float32."""
    scores = scores_of(queries, past)
    highest = scores.amax(-1, keepdim=True)
    scores.sub_(highest).exp_()
    sums = scores.sum(-1, keepdim=True)
    mixed = torch.bmm(scores.to(past.values.dtype), past.values)
    return mixed.div_(sums), highest.add_(sums.log_())


def by_fused_cpu_kernel(queries: Tensor, past: Past) -> tuple[Tensor, Tensor]:
    """The CPU kernel behind ``scaled_dot_product_attention``, whose sums are in float32 in every dtype."""
    batches, count, _ = queries.shape
    mixed, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries.unsqueeze(0),
        past.keys.unsqueeze(0),
        past.values.unsqueeze(0),
        attn_mask=past.mask.unsqueeze(0).expand(1, batches, count, -1) if past.masked else None,
    )
    return mixed.squeeze(0), logs.squeeze(0).unsqueeze(-1)


def by_causal_products(
    queries: Tensor, keys: Tensor, values: Tensor, newest: int, *, logs_wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """For B heads of one row, whose ``newest`` positions see what comes before them and themselves: ``queries``
    (B, N, q, size) of the last N of them, ``keys`` and ``values`` (B, P, size) up to the last, in float32. Returns o
    (B, N, q, size) and, if wanted, l (B, N, q, 1)."""
    batches, count, heads, size = queries.shape
    flat = (queries * size**-0.5).reshape(batches, count * heads, size)
    scores = torch.bmm(flat, keys.transpose(1, 2)).view(batches, count, heads, -1)
    if count > 1:
        unseen = torch.full((count, newest), -torch.inf).triu_(newest - count + 1)
        scores[..., -newest:] += unseen[:, None]
    logs = scores.logsumexp(-1, keepdim=True) if logs_wanted else None
    weights = scores.softmax(-1) if logs is None else scores.sub_(logs).exp_()
    return torch.bmm(weights.view(batches, count * heads, -1), values).view(batches, count, heads, size), logs


def attention_for(device: torch.device) -> Attention:
    return by_fused_cpu_kernel if device.type == "cpu" else by_products


def joined(mixed: Tensor, logs: Tensor, other: Tensor, other_logs: Tensor) -> Tensor:
    """Returns attention over both parts, (..., size)."""
    return torch.lerp(other, mixed, torch.sigmoid(logs - other_logs).to(mixed.dtype))
