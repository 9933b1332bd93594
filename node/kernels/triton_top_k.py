"""Sparse updates on a GPU, as Triton kernels: to the bit what ``protocol.weights.sparsify`` defines.

For each chunk of 4096 one program reads residual and delta once, keeps the sum in registers, finds the k-th largest
magnitude bit by bit from the top, and writes the sum and the chosen entries. The later kernels touch only the chosen
entries, one in 64. A product is never contracted with a sum, and sums are over integers, so that their order does not
matter.

Checked against the reference in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from node.kernels import triton_bits
from protocol.weights.sparse_update import PLAIN, TensorSection, pack_section, shortest_coding
from protocol.weights.sparsify import (
    CHUNK_ELEMENTS,
    CODES,
    STEP_BITS,
    SparseTensor,
    check_arguments,
    clipped_codebooks,
    code_bounds,
    codebook_of,
    kept_count,
    step_exponent,
)

_BLOCK: Final = 1024  # entries a program, in kernels over the chosen entries
_EXACT: Final = {"enable_fp_fusion": False}


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSparseTensor:
    """A ``SparseTensor`` whose arrays lie on the device: int16 ``indices`` and uint8 ``codes``, both (N,)."""

    size: int
    kept: int
    indices: Tensor
    codes: Tensor
    codebook: NDArray[np.float32]

    def host(self) -> SparseTensor:
        indices = self.indices.cpu().numpy().view(np.uint16)
        return SparseTensor(self.size, self.kept, indices, self.codes.cpu().numpy(), self.codebook)


def sparsify_on_device(residual: Tensor, delta: Tensor, *, decay: float, kept: int) -> DeviceSparseTensor:
    """``protocol.weights.sparsify.sparsify`` on flat float32 tensors of one device; changes ``residual``."""
    check_arguments(tuple(residual.shape), tuple(delta.shape), decay, kept)
    if residual.dtype != torch.float32 or not residual.is_contiguous():
        raise ValueError(f"the residual must be contiguous float32, not {residual.dtype}")
    size, count = len(residual), kept_count(len(residual), kept)
    indices = torch.empty(count, dtype=torch.int16, device=residual.device)
    values = torch.empty(count, dtype=torch.float32, device=residual.device)
    chunks = triton.cdiv(size, CHUNK_ELEMENTS)
    largest = torch.empty(chunks, dtype=torch.int32, device=residual.device)
    change = delta.to(residual.device, torch.float32).contiguous()
    _select[(chunks,)](
        residual, change, indices, values, largest, size, kept, decay, CHUNK=CHUNK_ELEMENTS, num_warps=8, **_EXACT
    )
    exponent = step_exponent(int(largest.max()))
    codes, codebook = _quantised(values, exponent)
    sent = map(float, codebook)
    _subtract[(triton.cdiv(count, _BLOCK),)](
        residual, indices, values, codes, count, kept, *sent, CHUNK=CHUNK_ELEMENTS, BLOCK=_BLOCK, **_EXACT
    )
    return DeviceSparseTensor(size, kept, indices, codes, codebook)


def pack_update_on_device(tensor: DeviceSparseTensor) -> TensorSection:
    """Returns one tensor's section, the same as ``protocol.weights.sparse_update.pack_section``."""
    gaps = tensor.indices.to(torch.int32, copy=True)
    gaps[1:] -= tensor.indices[:-1] + 1
    gaps[:: tensor.kept] = tensor.indices[:: tensor.kept].to(torch.int32)  # the first of a chunk
    coding, index_bytes = shortest_coding(torch.bincount(gaps, minlength=CHUNK_ELEMENTS).cpu().numpy())
    if coding == PLAIN:
        return pack_section(tensor.host())
    content = triton_bits.rice(gaps, coding) + triton_bits.two_bits(tensor.codes)
    return TensorSection(coding, index_bytes, tensor.codebook, content)


def scatter_mean_on_device(updates: Sequence[SparseTensor], device: torch.device) -> Tensor:
    """``protocol.weights.sparsify.scatter_mean`` to the bit: (n,) float32 on ``device``.

    Peers are added one after the other, in the given order; the division then visits only what they touched.
    """
    codebooks = clipped_codebooks(updates)
    total = torch.zeros(updates[0].size, device=device)
    contributors = torch.zeros(updates[0].size, dtype=torch.int16, device=device)
    sent = [
        (torch.from_numpy(u.indices.view(np.int16)).to(device), torch.from_numpy(u.codes).to(device)) for u in updates
    ]
    for update, (indices, codes), codebook in zip(updates, sent, codebooks, strict=True):
        grid = (triton.cdiv(len(indices), _BLOCK),)
        arguments = (total, contributors, indices, codes, len(indices), update.kept, *map(float, codebook))
        _add[grid](*arguments, CHUNK=CHUNK_ELEMENTS, BLOCK=_BLOCK, **_EXACT)
    for update, (indices, _) in zip(updates, sent, strict=True):
        grid = (triton.cdiv(len(indices), _BLOCK),)
        arguments = (total, contributors, indices, len(indices), update.kept)
        _divide[grid](*arguments, CHUNK=CHUNK_ELEMENTS, BLOCK=_BLOCK, **_EXACT)
    return total


def _quantised(values: Tensor, exponent: int) -> tuple[Tensor, NDArray[np.float32]]:
    """Returns the codes of the chosen values, and the codebook."""
    count, programs = len(values), triton.cdiv(len(values), _BLOCK)
    factor = 2.0 ** (STEP_BITS - exponent)
    squares = torch.empty(programs, dtype=torch.int64, device=values.device)
    _sum_squares[(programs,)](values, squares, count, factor, BLOCK=_BLOCK, **_EXACT)
    bounds = code_bounds(int(squares.sum()), count)
    codes = torch.empty(count, dtype=torch.uint8, device=values.device)
    tallies = torch.empty(programs, 2 * CODES, dtype=torch.int64, device=values.device)
    _quantise[(programs,)](values, codes, tallies, count, factor, *bounds, BLOCK=_BLOCK, CODES=CODES, **_EXACT)
    sums_and_counts = tallies.sum(dim=0).tolist()
    return codes, codebook_of(sums_and_counts[:CODES], sums_and_counts[CODES:], exponent)


@triton.jit
def _select(residual, delta, indices, values, largest, size, kept, decay, CHUNK: tl.constexpr):
    """Accumulates one chunk and selects its entries; writes the chunk's largest key to ``largest``."""
    chunk = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHUNK)
    place = chunk * CHUNK + lane
    inside = place < size
    kept_part = decay * tl.load(residual + place, mask=inside, other=0.0)
    e = kept_part + tl.load(delta + place, mask=inside, other=0.0)
    tl.store(residual + place, e, mask=inside)
    keys = tl.where(inside, e.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)
    length = tl.minimum(size - chunk * CHUNK, CHUNK).to(tl.int32)
    count = (kept * length + CHUNK - 1) // CHUNK
    bound = count * 0  # the k-th largest key, found from its highest bit down
    for step in range(31):
        trial = bound | (1 << (30 - step))
        reached = tl.sum((keys >= trial).to(tl.int32), axis=0)
        bound = tl.where(reached >= count, trial, bound)
    equal = (keys == bound).to(tl.int32)
    above = (keys > bound).to(tl.int32)
    spare = count - tl.sum(above, axis=0)  # how many of the equal ones to take: those of lower index
    chosen = above + equal * (tl.cumsum(equal, axis=0) <= spare).to(tl.int32)
    rank = chunk * kept + tl.cumsum(chosen, axis=0) - 1
    tl.store(indices + rank, lane.to(tl.int16), mask=chosen > 0)
    tl.store(values + rank, e, mask=chosen > 0)
    tl.store(largest + chunk, tl.max(keys, axis=0))


@triton.jit
def _steps(values, place, count, factor):
    """rint(value · factor): adding 1.5 · 2^23 leaves no room for a fraction. Within ±2^16; 0 outside ``count``."""
    scaled = tl.load(values + place, mask=place < count, other=0.0) * factor
    return ((scaled + 12582912.0) - 12582912.0).to(tl.int64)


@triton.jit
def _sum_squares(values, squares, count, factor, BLOCK: tl.constexpr):
    steps = _steps(values, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), count, factor)
    tl.store(squares + tl.program_id(0), tl.sum(steps * steps, axis=0))


@triton.jit
def _quantise(values, codes, tallies, count, factor, one, two, three, BLOCK: tl.constexpr, CODES: tl.constexpr):
    """Writes codes, and each program's Σu and count of each code."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    steps = _steps(values, place, count, factor)
    code = (steps >= one).to(tl.int32) + (steps >= two).to(tl.int32) + (steps >= three).to(tl.int32)
    tl.store(codes + place, code.to(tl.uint8), mask=inside)
    row = tallies + tl.program_id(0) * (2 * CODES)
    for each in range(CODES):
        has = (inside & (code == each)).to(tl.int64)
        tl.store(row + each, tl.sum(steps * has, axis=0))
        tl.store(row + CODES + each, tl.sum(has, axis=0))


@triton.jit
def _sent(codes, place, inside, c0, c1, c2, c3):
    """The values that the codes stand for."""
    code = tl.load(codes + place, mask=inside, other=0)
    return tl.where(code == 0, c0, tl.where(code == 1, c1, tl.where(code == 2, c2, c3)))


@triton.jit
def _positions(indices, place, inside, kept, CHUNK: tl.constexpr):
    """Positions within the tensor: every chunk but the last has ``kept`` entries."""
    return (place // kept).to(tl.int64) * CHUNK + tl.load(indices + place, mask=inside, other=0)


@triton.jit
def _subtract(residual, indices, values, codes, count, kept, c0, c1, c2, c3, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    left = tl.load(values + place, mask=inside, other=0.0) - _sent(codes, place, inside, c0, c1, c2, c3)
    tl.store(residual + _positions(indices, place, inside, kept, CHUNK), left, mask=inside)


@triton.jit
def _add(total, contributors, indices, codes, count, kept, c0, c1, c2, c3, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Adds one peer's entries; no two of them have the same position."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    where = _positions(indices, place, inside, kept, CHUNK)
    value = _sent(codes, place, inside, c0, c1, c2, c3)
    tl.store(total + where, tl.load(total + where, mask=inside, other=0.0) + value, mask=inside)
    tl.store(contributors + where, tl.load(contributors + where, mask=inside, other=0) + 1, mask=inside)


@triton.jit
def _divide(total, contributors, indices, count, kept, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Divides where several contributed, and marks these places as done for the peers that follow."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    where = _positions(indices, place, inside, kept, CHUNK)
    number = tl.load(contributors + where, mask=inside, other=1)
    several = inside & (number > 1)
    mean = tl.math.div_rn(tl.load(total + where, mask=several, other=0.0), number.to(tl.float32))
    tl.store(total + where, mean, mask=several)
    tl.store(contributors + where, number * 0 + 1, mask=several)
