"""Bits of the Rice code and of two-bit codes, packed on a GPU; ``protocol.weights.rice`` defines them to the byte.

Checked against the reference in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 256  # bytes a program


def rice(gaps: Tensor, parameter: int) -> bytes:
    """``protocol.weights.rice.rice_encode`` of gaps (N,) on the device; only the bytes leave it."""
    if not len(gaps):
        return b""
    low = _packed(gaps, planes=parameter, width=1)
    ones = torch.cumsum((gaps.long() >> parameter) + 1, dim=0) - 1
    unary = torch.zeros(int(ones[-1]) + 1, dtype=torch.uint8, device=gaps.device)
    unary[ones] = 1
    return host_bytes(low) + host_bytes(_packed(unary, planes=1, width=1))


def two_bits(codes: Tensor) -> bytes:
    """Packs four codes (N,) into a byte, the first in the lowest bits."""
    return host_bytes(_packed(codes, planes=1, width=2))


def host_bytes(values: Tensor) -> bytes:
    content: bytes = values.cpu().numpy().tobytes()
    return content


def _packed(values: Tensor, *, planes: int, width: int) -> Tensor:
    """Returns (planes, ⌈N · width / 8⌉) uint8: plane p holds ``width`` bits of each value, from bit p on."""
    a_byte = 8 // width
    row_bytes = triton.cdiv(len(values), a_byte)
    out = torch.empty(planes, row_bytes, dtype=torch.uint8, device=values.device)
    if planes:
        grid = (triton.cdiv(row_bytes, _BLOCK), planes)
        _pack[grid](values, out, len(values), row_bytes, A_BYTE=a_byte, WIDTH=width, BLOCK=_BLOCK)
    return out


@triton.jit
def _pack(values, out, count, row_bytes, A_BYTE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    plane = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, A_BYTE)
    source = place[:, None].to(tl.int64) * A_BYTE + lane[None, :]
    value = tl.load(values + source, mask=source < count, other=0).to(tl.int64)
    bits = ((value >> plane) & ((1 << WIDTH) - 1)) << (WIDTH * lane)[None, :]
    row = out + plane.to(tl.int64) * row_bytes
    tl.store(row + place, tl.sum(bits, axis=1).to(tl.uint8), mask=place < row_bytes)
