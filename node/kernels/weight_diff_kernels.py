"""Fast weight diffs: byte for byte what ``protocol.weights.weight_diff`` defines.

Weights are contiguous bf16 tensors of any shape, in the layout's order, all in host memory (compiled loops,
``cpu_diff``, in as many threads as torch has) or all on one CUDA device (Triton, ``triton_diff``). Weights on any other
device must be copied first. Hashes are computed in host memory, one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.kernels import cpu_bits, cpu_diff
from node.kernels.dispatch import for_triton
from protocol.errors import IntegrityError, MalformedError
from protocol.weights.rice import near_parameter
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import (
    DENSE,
    DiffSection,
    Patterns,
    byte_planes,
    check_base,
    decompress_planes,
    from_byte_planes,
    hash_of_digests,
    join_diff,
    open_diff,
    shorter_section,
    tensor_digest,
)

_FIRST_SHARE = 32  # initial room: one change in so many weights; it grows if more have changed


def patterns_of(weights: Sequence[Tensor]) -> list[Patterns]:
    """Returns the bit patterns (n,) of bf16 tensors, sharing their memory. Raises ValueError for any other tensor."""
    for tensor in weights:
        if tensor.dtype != torch.bfloat16 or tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError(f"weights must be contiguous bfloat16 in host memory, not {tensor.dtype}, {tensor.device}")
    return [tensor.detach().view(torch.int16).reshape(-1).numpy().view(np.uint16) for tensor in weights]


def weights_hash_fast(layout: TensorLayout, weights: Sequence[Tensor]) -> bytes:
    """The same as ``protocol.weights.weight_diff.weights_hash``, one thread per tensor."""
    flat = _flat(layout, weights)
    with _pool() as pool:
        return hash_of_digests(layout, list(pool.map(_digest, flat)))


def encode_diff_fast(
    layout: TensorLayout,
    base: Sequence[Tensor],
    target: Sequence[Tensor],
    *,
    base_hash: bytes,
    target_hash: bytes,
) -> bytes:
    """Returns the blob of the diff from ``base`` to ``target``; their hashes are those of ``weights_hash_fast``."""
    olds, news = _flat(layout, base), _flat(layout, target)
    if for_triton([*base, *target]):
        from node.kernels import triton_diff

        return join_diff(layout, base_hash, target_hash, list(map(triton_diff.pack_diff_on_device, olds, news)))
    with _pool() as pool:
        sections = list(pool.map(pack_diff_fast, map(_array, olds), map(_array, news)))
    return join_diff(layout, base_hash, target_hash, sections)


def apply_diff_fast(
    blob: bytes | memoryview, layout: TensorLayout, weights: Sequence[Tensor], *, current: bytes
) -> bool:
    """Changes ``weights``, whose hash is ``current``, to the diff's target, in place; False if they are it already.

    Afterwards they are exactly the target; otherwise the call raises as ``protocol.weights.weight_diff.apply_diff``
    does, and they are unchanged. ``current`` is not checked here: if it is wrong, the target's hash does not match
    (``IntegrityError``).
    """
    flat = _flat(layout, weights)
    diff = open_diff(blob, layout)
    if current == diff.target:
        return False
    check_base(diff, current)
    move = _mover(weights)

    def moved_digest(change: TensorSteps, tensor: Tensor) -> bytes:
        move(change, tensor, 1)
        return _digest(tensor)  # now, while it may still be in a cache

    with _pool() as pool:
        changes = list(pool.map(unpack_diff_fast, diff.sections, layout.sizes))
        if hash_of_digests(layout, list(pool.map(moved_digest, changes, flat))) == diff.target:
            return True
        list(pool.map(move, changes, flat, [-1] * len(flat)))
    raise IntegrityError(f"the diff does not lead to the weights {diff.target.hex()} that it names")


@dataclass(frozen=True, slots=True, eq=False)
class TensorSteps:
    """A tensor's change, decoded and checked against the format; no weight has been read or written yet."""

    positions: NDArray[np.uint32] | None  # (c,) ascending; None if dense
    numbers: NDArray[np.uint8] | Patterns  # (2, c) byte planes of zigzag differences; dense: (n,) the patterns

    def move(self, weights: Patterns, sign: int) -> None:
        """Changes ``weights`` (n,) from base to target; with ``sign`` -1 from target back to base."""
        if self.positions is not None:
            cpu_diff.add_steps(weights, self.positions, self.numbers, sign)
        else:  # swaps old and new patterns, so that the change can be reverted
            weights[:], self.numbers[:] = self.numbers.copy(), weights.copy()


def pack_diff_fast(base: Patterns, target: Patterns) -> DiffSection:
    """Returns one tensor's section, the same as ``protocol.weights.weight_diff.pack_tensor``."""
    positions, zigzags = changes_between(base, target)
    gaps = np.diff(positions, prepend=-1) - 1
    parameter, gap_bytes = near_parameter(gaps, len(base))
    coded = np.zeros(gap_bytes, np.uint8)
    cpu_bits.write_rice(gaps, parameter, coded)
    return shorter_section(parameter, len(gaps), coded.tobytes(), byte_planes(zigzags), len(target), lambda: target)


def changes_between(base: Patterns, target: Patterns) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Returns where two arrays (n,) of patterns differ, ascending, and by how much, in zigzag: both (c,)."""
    start = 0
    found: list[tuple[NDArray[np.int64], NDArray[np.uint16]]] = []
    room = len(base) // _FIRST_SHARE + 128
    while start < len(base):
        positions, zigzags = np.empty(room, np.int64), np.empty(room, np.uint16)
        start, count = cpu_diff.write_changes(base, target, start, positions, zigzags)
        found.append((positions[:count], zigzags[:count]))
        room = len(base) - start + 128
    return (
        found[0] if len(found) == 1 else (np.concatenate([p for p, _ in found]), np.concatenate([z for _, z in found]))
    )


def unpack_diff_fast(section: DiffSection, size: int) -> TensorSteps:
    """Returns one tensor's change after every check of ``protocol.weights.weight_diff.unpack_tensor``.

    Raises ``MalformedError``. The base is not needed until the change is applied.
    """
    content = memoryview(section.content)
    if section.coding == DENSE:
        return TensorSteps(None, from_byte_planes(decompress_planes(content, 2 * size)).copy())
    count = section.count
    positions = _positions(np.frombuffer(content, np.uint8, section.gap_bytes), count, section.coding, size)
    planes = decompress_planes(content[section.gap_bytes :], 2 * count) if count else b""
    numbers = np.frombuffer(planes, np.uint8).reshape(2, -1)
    if not (numbers[0] | numbers[1]).all():
        raise MalformedError("a change that changes nothing")
    return TensorSteps(positions, numbers)


def _positions(coded: NDArray[np.uint8], count: int, parameter: int, size: int) -> NDArray[np.uint32]:
    plane_bytes = -(-count // 8)
    if len(coded) < (parameter + 1) * plane_bytes:
        raise MalformedError(f"{len(coded)} bytes for {count} gaps of {parameter} low bits and more")
    low: NDArray[Any] = np.zeros(8 * plane_bytes, np.uint8 if parameter <= 8 else np.uint32)
    for first in range(0, parameter, 8):
        planes = coded[first * plane_bytes : min(first + 8, parameter) * plane_bytes].reshape(-1, plane_bytes)
        eight_bits = np.zeros(8 * plane_bytes, np.uint8)
        cpu_diff.read_low(planes, eight_bits)
        low |= eight_bits.astype(low.dtype, copy=False) << first
    unary = np.zeros(-(-(len(coded) - parameter * plane_bytes) // 8) * 8, np.uint8)
    unary[: len(coded) - parameter * plane_bytes] = coded[parameter * plane_bytes :]
    positions = np.empty(count, np.uint32)
    padded = low[count:].any() or (count and coded[-1] == 0)
    if padded or not cpu_diff.read_unary(unary, low, parameter, size, positions):
        raise MalformedError(f"{len(coded)} bytes that are not {count} gaps between {size} weights")
    return positions


def _flat(layout: TensorLayout, weights: Sequence[Tensor]) -> list[Tensor]:
    """Returns int16 patterns (n,) that share the weights' memory. Raises ValueError for another dtype or layout."""
    for tensor in weights:
        if tensor.dtype != torch.bfloat16 or not tensor.is_contiguous():
            raise ValueError(f"weights must be contiguous bfloat16, not {tensor.dtype}")
    if not for_triton(weights):
        patterns_of(weights)  # raises for another device
    flat = [tensor.detach().view(torch.int16).reshape(-1) for tensor in weights]
    if [len(tensor) for tensor in flat] != list(layout.sizes):
        raise ValueError("the weights must be the tensors of the layout, in its order")
    return flat


def _array(flat: Tensor) -> Patterns:
    """Returns the patterns as an array: the same memory, or a copy from a device."""
    return flat.cpu().numpy().view(np.uint16)


def _digest(flat: Tensor) -> bytes:
    return tensor_digest(_array(flat))


def _mover(weights: Sequence[Tensor]) -> Callable[[TensorSteps, Tensor, int], None]:
    """Returns what applies a change to int16 patterns (n,), or with sign -1 reverts it."""
    if for_triton(weights):
        from node.kernels import triton_diff

        one_at_a_time = Lock()  # Triton promises nothing to threads that compile and load the same kernel at once

        def move(change: TensorSteps, flat: Tensor, sign: int) -> None:
            with one_at_a_time:
                triton_diff.move_on_device(flat, change.positions, change.numbers, sign)

        return move
    return lambda change, flat, sign: change.move(_array(flat), sign)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads())
