"""Weight diffs on a GPU: finds and applies changes of bf16 patterns, as ``protocol.weights.weight_diff`` defines.

Base and target are read once, into one bit per weight; the next pass reads those bits, and patterns where they are set.

Checked against the reference in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from node.kernels import triton_bits
from protocol.weights.rice import near_parameter
from protocol.weights.weight_diff import DiffSection, Patterns, shorter_section

_BLOCK: Final = 4096  # weights a program
_CHANGES: Final = 1024  # changes a program


def move_on_device(weights: Tensor, positions: NDArray[np.uint32] | None, numbers: NDArray[Any], sign: int) -> None:
    """Applies a change, ``TensorSteps`` in host memory, to int16 patterns (n,); with ``sign`` -1 reverts it."""
    if positions is None:  # dense: swaps old and new patterns, so that the change can be reverted
        before = host_patterns(weights).copy()
        weights.copy_(torch.from_numpy(numbers.view(np.int16)))
        numbers[:] = before
    else:
        where, planes = torch.from_numpy(positions.astype(np.int64)), torch.from_numpy(numbers.copy())
        add_steps_on_device(weights, where.to(weights.device), planes.to(weights.device), sign)


def pack_diff_on_device(base: Tensor, target: Tensor) -> DiffSection:
    """``protocol.weights.weight_diff.pack_tensor``: one tensor's section, from int16 patterns (n,)."""
    positions, zigzags = find_changes_on_device(base, target)
    gaps = torch.diff(positions, prepend=positions.new_full((1,), -1)) - 1
    parameter, _ = near_parameter(cast(NDArray[np.int64], gaps), len(base))  # a Tensor shifts and sums alike
    planes = triton_bits.host_bytes(torch.stack([zigzags & 0xFF, zigzags >> 8]).to(torch.uint8))
    coded = triton_bits.rice(gaps, parameter)
    return shorter_section(parameter, len(gaps), coded, planes, len(base), lambda: host_patterns(target))


def host_patterns(weights: Tensor) -> Patterns:
    """Returns int16 patterns in host memory: a copy, or the same memory if they lie there."""
    return weights.cpu().numpy().view(np.uint16)


def find_changes_on_device(base: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ascending positions and zigzag differences, both (c,) int64, where int16 patterns (n,) differ."""
    size, blocks = len(base), triton.cdiv(len(base), _BLOCK)
    mask = torch.empty(blocks * _BLOCK // 8, dtype=torch.uint8, device=base.device)
    counts = torch.empty(blocks, dtype=torch.int64, device=base.device)
    _compare[(blocks,)](base, target, mask, counts, size, BLOCK=_BLOCK)
    ends = torch.cumsum(counts, dim=0)
    changed = int(ends[-1])
    positions = torch.empty(changed, dtype=torch.int64, device=base.device)
    zigzags = torch.empty(changed, dtype=torch.int64, device=base.device)
    _collect[(blocks,)](base, target, mask, ends - counts, positions, zigzags, BLOCK=_BLOCK, num_warps=8)
    return positions, zigzags


def add_steps_on_device(weights: Tensor, positions: Tensor, planes: Tensor, sign: int) -> None:
    """Adds the zigzag differences in byte planes (2, c) to int16 patterns (n,), or with -1 subtracts, modulo 2^16."""
    count = len(positions)
    if count:
        _add_steps[(triton.cdiv(count, _CHANGES),)](weights, positions, planes, count, sign, BLOCK=_CHANGES)


@triton.jit
def _compare(base, target, mask, counts, size, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    byte = block * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    bit = tl.arange(0, 8)
    place = byte[:, None] * 8 + bit[None, :]
    inside = place < size
    old = tl.load(base + place, mask=inside, other=0)
    new = tl.load(target + place, mask=inside, other=0)
    differs = (old != new).to(tl.int32)
    tl.store(mask + byte, tl.sum(differs << bit[None, :], axis=1).to(tl.uint8))
    tl.store(counts + block, tl.sum(tl.sum(differs, axis=1), axis=0).to(tl.int64))


@triton.jit
def _collect(base, target, mask, starts, positions, zigzags, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    place = block * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(mask + (place >> 3)).to(tl.int32)
    differs = (byte >> (place & 7).to(tl.int32)) & 1
    changed = differs > 0
    rank = tl.load(starts + block) + tl.cumsum(differs, axis=0) - 1
    old = tl.load(base + place, mask=changed, other=0).to(tl.int32)
    new = tl.load(target + place, mask=changed, other=0).to(tl.int32)
    step = ((new - old + 0x8000) & 0xFFFF) - 0x8000  # modulo 2^16, as signed
    tl.store(positions + rank, place, mask=changed)
    tl.store(zigzags + rank, (((step << 1) ^ (step >> 31)) & 0xFFFF).to(tl.int64), mask=changed)


@triton.jit
def _add_steps(weights, positions, planes, count, sign, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    low = tl.load(planes + place, mask=inside, other=0).to(tl.int32)
    zigzag = low | (tl.load(planes + count + place, mask=inside, other=0).to(tl.int32) << 8)
    step = sign * ((zigzag >> 1) ^ -(zigzag & 1))
    where = tl.load(positions + place, mask=inside, other=0)
    old = tl.load(weights + where, mask=inside, other=0).to(tl.int32)
    tl.store(weights + where, (old + step).to(tl.int16), mask=inside)
