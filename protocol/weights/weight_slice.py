"""A slice of the weights in few bits each, quantised modulo a range, for a receiver whose own weights are near.

The elements of all tensors of a layout are numbered consecutively, in its order; a slice has those whose number is
``phase`` modulo ``stride``. With δ the step of the tensor and B = 2^bits codes,

    code = rint(x / δ) mod B                                     sender
    x̂ = δ (code + B rint((y / δ - code) / B))                    receiver, y its own value

float64, halves to even. x̂ is, of the multiples of δ with that code, the nearest to y: within δ/2 of x wherever
|x - y| < (B - 1) δ / 2, and within B δ / 2 of y whatever was sent. This is Moniqua's idea (arXiv 2002.11787): replicas
that are averaged differ by far less than the size of their weights, so that the leading bits need not be sent.
Differences from Moniqua: nearest rounding instead of random rounding, and a step for each tensor, which is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import MalformedError
from protocol.weights.sparsify import Floats
from protocol.weights.tensor_layout import TensorLayout

MAX_BITS: Final = 8
MAX_STRIDE: Final = 65_535
MIN_STEP: Final = 2.0**-30  # x / δ is then an exact number of less than 2^47


@dataclass(frozen=True, slots=True, eq=False)
class WeightSlice:
    """A slice as it is sent. ``unpack_slice`` guarantees: 0 ≤ phase < stride; as many codes as the slice has elements,
    each below 2^bits; as many steps as tensors, from ``MIN_STEP`` to ``limits.UPDATE_MAGNITUDE``.
    """

    stride: int
    phase: int
    bits: int
    steps: Floats  # (T,)
    codes: NDArray[np.uint8]  # (n,)


def slice_count(layout: TensorLayout, stride: int, phase: int) -> int:
    """The number of elements of the slice."""
    return len(range(phase, sum(layout.sizes), stride))


def slice_elements(layout: TensorLayout, stride: int, phase: int) -> list[slice]:
    """The elements of each flat tensor that are in the slice."""
    found, before = [], 0
    for size in layout.sizes:
        found.append(slice((phase - before) % stride, size, stride))
        before += size
    return found


def quantise_slice(
    layout: TensorLayout, weights: Sequence[Floats], steps: Floats, *, stride: int, phase: int, bits: int
) -> WeightSlice:
    """The slice of ``weights``, flat tensors in the layout's order. Raises ValueError if it cannot be sent."""
    if not (1 <= stride <= MAX_STRIDE and 0 <= phase < stride and 1 <= bits <= MAX_BITS):
        raise ValueError(f"no slice has stride {stride}, phase {phase} and {bits} bits")
    if [len(tensor) for tensor in weights] != list(layout.sizes) or steps.shape != (len(weights),):
        raise ValueError("weights and steps must be those of the layout's tensors")
    if not ((steps >= MIN_STEP) & (steps <= limits.UPDATE_MAGNITUDE)).all():
        raise ValueError(f"a step outside {MIN_STEP:g} to {limits.UPDATE_MAGNITUDE:g}")
    codes = []
    for tensor, step, part in zip(weights, steps.tolist(), slice_elements(layout, stride, phase), strict=True):
        values = tensor[part].astype(np.float64)
        if not (np.abs(values) <= limits.UPDATE_MAGNITUDE).all():
            raise ValueError(f"a weight that is not finite or above {limits.UPDATE_MAGNITUDE:g} cannot be sent")
        codes.append((np.rint(values / step).astype(np.int64) & (2**bits - 1)).astype(np.uint8))
    return WeightSlice(stride, phase, bits, steps.astype(np.float32), np.concatenate(codes))


def slice_differences(layout: TensorLayout, part: WeightSlice, own: Sequence[Floats]) -> list[Floats]:
    """x̂ - y for each tensor: the sender's values minus ours, on the slice; float32, at most B δ / 2.

    ``own`` are flat finite tensors in the layout's order.
    """
    differences, start, codes_in_all = [], 0, float(2**part.bits)
    for tensor, step, where in zip(
        own, part.steps.astype(np.float64).tolist(), slice_elements(layout, part.stride, part.phase), strict=True
    ):
        ours = tensor[where].astype(np.float64) / step
        code = part.codes[start : start + len(ours)].astype(np.float64)
        start += len(ours)
        nearest = code + codes_in_all * np.rint((ours - code) / codes_in_all)
        differences.append(((nearest - ours) * step).astype(np.float32))
    return differences


def pack_codes(part: WeightSlice) -> bytes:
    """``bits`` planes of ⌈n/8⌉ bytes: bit p of code i is bit i mod 8 of byte ⌊i/8⌋ of plane p."""
    planes = [np.packbits(part.codes >> plane & 1, bitorder="little") for plane in range(part.bits)]
    return b"".join(plane.tobytes() for plane in planes)


def packed_bytes(layout: TensorLayout, stride: int, phase: int, bits: int) -> int:
    """The length of the packed codes of a slice."""
    return bits * -(-slice_count(layout, stride, phase) // 8)


def unpack_slice(
    layout: TensorLayout, raw: memoryview, steps: Floats, *, stride: int, phase: int, bits: int
) -> WeightSlice:
    """The slice packed in ``raw``. Raises ``MalformedError``. Allocates a few times its size."""
    if not (1 <= stride <= MAX_STRIDE and 0 <= phase < stride and 1 <= bits <= MAX_BITS):
        raise MalformedError(f"a slice of stride {stride}, phase {phase}, {bits} bits")
    if not ((steps >= MIN_STEP) & (steps <= limits.UPDATE_MAGNITUDE)).all():  # refuses NaN too
        raise MalformedError(f"a step outside {MIN_STEP:g} to {limits.UPDATE_MAGNITUDE:g}")
    count, expected = slice_count(layout, stride, phase), packed_bytes(layout, stride, phase, bits)
    if len(raw) != expected:
        raise MalformedError(f"{len(raw)} bytes of codes for {count} elements of {bits} bits; expected {expected}")
    codes = np.zeros(count, np.uint8)
    plane_bytes = -(-count // 8)
    for plane in range(bits):
        each = np.unpackbits(np.frombuffer(raw, np.uint8, plane_bytes, plane * plane_bytes), bitorder="little")
        if each[count:].any():
            raise MalformedError(f"bits after the last code in plane {plane}")
        codes |= each[:count] << plane
    return WeightSlice(stride, phase, bits, steps, codes)
