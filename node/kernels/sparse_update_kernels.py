"""Fast sparse updates, bit for bit as ``protocol.weights.sparsify`` and ``…sparse_update`` define them.

CPU tensors are processed in place by compiled loops (``cpu_top_k``), in as many threads as torch has; CUDA tensors by
Triton (``triton_top_k``), and only the bytes to send leave the device. A tensor on another device is processed in host
memory and its residual copied back: the result is correct on every device, and fast on these two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.kernels import cpu_bits, cpu_top_k
from node.kernels.dispatch import for_triton, is_for_triton
from protocol.weights.sparse_update import PLAIN, TensorSection, join_update, pack_section, shortest_coding
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
from protocol.weights.tensor_layout import TensorLayout

_CHUNKS_PER_TASK = 256  # 4 MiB: about a millisecond, so that threads finish together


@dataclass(frozen=True, slots=True, eq=False)
class _Selection:
    """One tensor between selection and quantisation."""

    residual: NDArray[np.float32]  # (n,)
    delta: NDArray[np.float32]  # (n,)
    indices: NDArray[np.uint16]  # (N,)
    values: NDArray[np.float32]  # (N,)


def sparsify_fast(residual: Tensor, delta: Tensor, *, decay: float, kept: int) -> SparseTensor:
    """``protocol.weights.sparsify.sparsify`` on flat tensors; ``residual``, float32, is changed in place."""
    if for_triton([residual]):
        from node.kernels import triton_top_k

        return triton_top_k.sparsify_on_device(residual, delta, decay=decay, kept=kept).host()
    with _pool() as pool:
        return _sparsify_all(pool, [residual], [delta], decay, kept)[0]


def encode_update_fast(
    layout: TensorLayout, residuals: Sequence[Tensor], deltas: Sequence[Tensor], *, decay: float, kept: int
) -> bytes:
    """Returns the blob of an update of all tensors of a layout, in its order; each residual becomes what is not sent.

    The same bytes as ``encode_update`` of the reference. Raises ValueError as ``sparsify`` does; some residuals may
    then already hold sums.
    """
    if [residual.numel() for residual in residuals] != list(layout.sizes):
        raise ValueError("the residuals must be the tensors of the layout, in its order")
    if for_triton(residuals):
        from node.kernels import triton_top_k

        pairs = zip(residuals, deltas, strict=True)
        sections = [
            triton_top_k.pack_update_on_device(triton_top_k.sparsify_on_device(r, d, decay=decay, kept=kept))
            for r, d in pairs
        ]
        return join_update(layout, kept, sections)
    with _pool() as pool:
        tensors = _sparsify_all(pool, residuals, deltas, decay, kept)
        return join_update(layout, kept, list(pool.map(pack_update_fast, tensors)))


def pack_update_fast(tensor: SparseTensor) -> TensorSection:
    """Returns one tensor's section, the same as ``protocol.weights.sparse_update.pack_section``."""
    gaps = np.empty(len(tensor.indices), np.uint16)
    histogram = np.zeros(CHUNK_ELEMENTS, np.int64)
    cpu_bits.gaps_of(tensor.indices, tensor.kept, gaps, histogram)
    coding, index_bytes = shortest_coding(histogram)
    if coding == PLAIN:
        return pack_section(tensor)
    content = np.zeros(index_bytes + -(-len(tensor.codes) // 4), np.uint8)
    cpu_bits.write_rice(gaps, coding, content[:index_bytes])
    cpu_bits.write_codes(tensor.codes, content[index_bytes:])
    return TensorSection(coding, index_bytes, tensor.codebook, content.tobytes())


def scatter_mean_fast(updates: Sequence[SparseTensor], device: torch.device | None = None) -> Tensor:
    """Returns the mean of several peers' updates of one tensor, each clipped to the median norm, (n,) float32.

    The same bits as ``protocol.weights.sparsify.scatter_mean``. On ``device``, host memory by default.
    """
    if device is not None and is_for_triton(device):
        from node.kernels import triton_top_k

        return triton_top_k.scatter_mean_on_device(updates, device)
    sums = np.zeros(updates[0].size, np.float32)
    contributors = np.zeros(updates[0].size, np.uint16)
    for update, codebook in zip(updates, clipped_codebooks(updates), strict=True):
        cpu_top_k.add(sums, contributors, update.kept, update.indices, update.codes, codebook)
    for update in updates:
        cpu_top_k.divide(sums, contributors, update.kept, update.indices)
    return torch.from_numpy(sums).to(device)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads())


def _sparsify_all(
    pool: ThreadPoolExecutor, residuals: Sequence[Tensor], deltas: Sequence[Tensor], decay: float, kept: int
) -> list[SparseTensor]:
    """Selects entries in all tensors, task by task, then quantises tensor by tensor."""
    selections = [_selection(r, d, decay, kept) for r, d in zip(residuals, deltas, strict=True)]
    tasks = [(index, chunks) for index, selection in enumerate(selections) for chunks in _tasks(len(selection.delta))]

    def select(task: tuple[int, range]) -> int:
        s, chunks = selections[task[0]], task[1]
        bounds = (chunks.start, chunks.stop)
        return int(cpu_top_k.select(s.residual, s.delta, np.float32(decay), kept, *bounds, s.indices, s.values))

    largest = [0] * len(selections)
    for (index, _), key in zip(tasks, pool.map(select, tasks), strict=True):
        largest[index] = max(largest[index], key)
    exponents = [step_exponent(key) for key in largest]
    tensors = list(pool.map(lambda s, x: _quantise(s, x, kept), selections, exponents))
    for tensor, selection in zip(residuals, selections, strict=True):
        if tensor.device.type != "cpu":
            tensor.copy_(torch.from_numpy(selection.residual))
    return tensors


def _selection(residual: Tensor, delta: Tensor, decay: float, kept: int) -> _Selection:
    check_arguments(tuple(residual.shape), tuple(delta.shape), decay, kept)
    if residual.dtype != torch.float32 or not residual.is_contiguous():
        raise ValueError(f"the residual must be contiguous float32, not {residual.dtype}")
    count = kept_count(len(residual), kept)
    host = residual.detach().cpu().numpy(), delta.detach().to("cpu", torch.float32).contiguous().numpy()
    return _Selection(*host, np.empty(count, np.uint16), np.empty(count, np.float32))


def _tasks(size: int) -> Iterator[range]:
    chunks = -(-size // CHUNK_ELEMENTS)
    return (range(first, min(first + _CHUNKS_PER_TASK, chunks)) for first in range(0, chunks, _CHUNKS_PER_TASK))


def _quantise(selection: _Selection, exponent: int, kept: int) -> SparseTensor:
    factor = np.float32(2.0 ** (STEP_BITS - exponent))
    count = len(selection.values)
    bounds = code_bounds(int(cpu_top_k.sum_of_squares(selection.values, factor)), count)
    codes = np.empty(count, np.uint8)
    sums, counts = np.zeros(CODES, np.int64), np.zeros(CODES, np.int64)
    cpu_top_k.quantise_values(selection.values, factor, np.array(bounds), codes, sums, counts)
    codebook = codebook_of(sums.tolist(), counts.tolist(), exponent)
    cpu_top_k.subtract(selection.residual, kept, selection.indices, codes, codebook)
    return SparseTensor(len(selection.residual), kept, selection.indices, codes, codebook)
