"""The slice of weights and the blob that carries it beside a sparse update: what a receiver makes of any bytes."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import IntegrityError, MalformedError, ProtocolError
from protocol.weights.compressed_weights import Compressed, decode_compressed, encode_compressed
from protocol.weights.sparse_update import encode_update
from protocol.weights.sparsify import kept_count, sparsify
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_slice import (
    MIN_STEP,
    WeightSlice,
    pack_codes,
    quantise_slice,
    slice_count,
    slice_differences,
    slice_elements,
    unpack_slice,
)
from tests.examples import examples
from tests.protocol.mutation import mutated

LAYOUT = TensorLayout.of({"a": (9, 50), "b": (5,), "c": (4100,), "d": ()})
STEPS = np.array([0.25, 0.5, 0.125, 1.0], np.float32)


def normal(seed: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size, np.float32) for size in LAYOUT.sizes]


def update(kept: int = 64) -> bytes:
    return encode_update(LAYOUT, [sparsify(np.zeros_like(d), d, decay=1.0, kept=kept) for d in normal(7)])


def part_of(weights: list[NDArray[np.float32]], stride: int = 18, phase: int = 4, bits: int = 3) -> WeightSlice:
    return quantise_slice(LAYOUT, weights, STEPS, stride=stride, phase=phase, bits=bits)


BLOBS = [encode_compressed(LAYOUT, update(kept), part_of(normal(1), bits=bits)) for kept, bits in ((64, 3), (1, 8))]


@given(st.integers(1, 5000))
@examples(50)
def test_the_slices_of_one_stride_have_every_element_once(stride: int) -> None:
    times = [np.zeros(size, np.int64) for size in LAYOUT.sizes]
    for phase in range(stride):
        parts = slice_elements(LAYOUT, stride, phase)
        for tensor, part in zip(times, parts, strict=True):
            tensor[part] += 1
        found = sum(len(range(*part.indices(size))) for part, size in zip(parts, LAYOUT.sizes, strict=True))
        assert found == slice_count(LAYOUT, stride, phase)
    assert all((tensor == 1).all() for tensor in times)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 1000))
@examples(60)
def test_who_is_near_reads_the_senders_values_to_half_a_step(bits: int, stride: int, seed: int) -> None:
    sender, phase = normal(seed), seed % stride
    part = part_of(sender, stride, phase, bits)
    reach = (2**bits - 1) / 2
    rng = np.random.default_rng(seed + 1)
    near = [
        (x + step * rng.uniform(-reach, reach, len(x)) * 0.999).astype(np.float32)
        for x, step in zip(sender, STEPS, strict=True)
    ]
    where = slice_elements(LAYOUT, stride, phase)
    for x, y, d, step, w in zip(sender, near, slice_differences(LAYOUT, part, near), STEPS, where, strict=True):
        assert (np.abs(y[w] + d - x[w]) <= step / 2 + 1e-4).all()


def test_who_is_far_away_is_moved_by_half_the_range_at_most() -> None:
    far = [1000 * x for x in normal(3)]
    for difference, step in zip(slice_differences(LAYOUT, part_of(normal(1)), far), STEPS, strict=True):
        assert (np.abs(difference) <= 4 * step * 1.0001).all()


def test_equal_weights_are_told_nothing_but_the_rounding() -> None:
    weights = [np.round(x * 8) * np.float32(1.0) for x in normal(3)]  # multiples of every step
    assert all(not difference.any() for difference in slice_differences(LAYOUT, part_of(weights), weights))


def test_the_least_step_and_the_largest_weight_are_exact() -> None:
    weights = [np.full(size, -limits.UPDATE_MAGNITUDE, np.float32) for size in LAYOUT.sizes]
    least = np.full(4, MIN_STEP, np.float32)
    part = quantise_slice(LAYOUT, weights, least, stride=1, phase=0, bits=3)
    own = [tensor + np.float32(2.0**-7) for tensor in weights]  # the next number above it
    for difference in slice_differences(LAYOUT, part, own):
        assert (np.abs(difference) <= 4 * MIN_STEP).all()


@given(st.integers(1, 8), st.integers(1, 6000), st.integers(0, 2**32))
@examples(60)
def test_decoding_gives_update_and_slice_back(bits: int, stride: int, seed: int) -> None:
    part = part_of(normal(seed % 100), stride, seed % stride, bits)
    found = decode_compressed(encode_compressed(LAYOUT, update(), part), LAYOUT)
    assert (found.part.stride, found.part.phase, found.part.bits) == (stride, seed % stride, bits)
    np.testing.assert_array_equal(found.part.codes, part.codes)
    np.testing.assert_array_equal(found.part.steps, STEPS)
    assert encode_update(LAYOUT, found.update) == update()


def test_three_bits_take_three_bits() -> None:
    layout = TensorLayout.of({"a": (256, 4096)})
    weights = [np.zeros(256 * 4096, np.float32)]
    part = quantise_slice(layout, weights, np.ones(1, np.float32), stride=16, phase=0, bits=3)
    assert len(pack_codes(part)) == 256 * 4096 // 16 * 3 // 8


def check(found: Compressed) -> None:
    """Whatever was decoded keeps every promise, and does no harm."""
    part = found.part
    assert len(part.codes) == slice_count(LAYOUT, part.stride, part.phase)
    assert len(part.codes) == 0 or part.codes.max() < 2**part.bits
    assert ((part.steps >= MIN_STEP) & (part.steps <= limits.UPDATE_MAGNITUDE)).all()
    for difference, step in zip(slice_differences(LAYOUT, part, normal(0)), part.steps.tolist(), strict=True):
        assert (np.abs(difference) <= 2 ** (part.bits - 1) * step * 1.0001).all()
    for tensor, size in zip(found.update, LAYOUT.sizes, strict=True):
        assert len(tensor.positions) == kept_count(size, tensor.kept)


@given(st.binary(max_size=200) | mutated(BLOBS, header_bytes=60))
@examples(400)
def test_any_bytes_decode_to_something_sound_or_are_refused(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        check(decode_compressed(raw, LAYOUT))


def test_cut_anywhere_or_lengthened_is_refused() -> None:
    for blob in BLOBS:
        for length in range(len(blob)):
            with pytest.raises(ProtocolError):
                decode_compressed(blob[:length], LAYOUT)
        with pytest.raises(MalformedError):
            decode_compressed(blob + b"\0", LAYOUT)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 2.0**-31, 70_000.0])
def test_a_step_that_is_none_is_refused(bad: float) -> None:
    part = part_of(normal(1))
    part.steps[2] = bad
    with pytest.raises(MalformedError, match="step"):
        decode_compressed(encode_compressed(LAYOUT, update(), part), LAYOUT)


@pytest.mark.parametrize(("stride", "phase", "bits"), [(18, 18, 3), (0, 0, 3), (18, 0, 9), (18, 0, 0)])
def test_a_slice_that_cannot_be_is_refused(stride: int, phase: int, bits: int) -> None:
    with pytest.raises(MalformedError):
        unpack_slice(LAYOUT, memoryview(b""), STEPS, stride=stride, phase=phase, bits=bits)
    with pytest.raises(ValueError, match="no slice"):
        part_of(normal(1), stride, phase, bits)


def test_bits_after_the_last_code_are_refused() -> None:
    part = part_of(normal(1))
    raw = bytearray(pack_codes(part))
    assert len(part.codes) % 8
    raw[-1] |= 0x80
    with pytest.raises(MalformedError, match="after the last code"):
        unpack_slice(LAYOUT, memoryview(raw), STEPS, stride=18, phase=4, bits=3)


def test_another_layout_is_refused() -> None:
    with pytest.raises(IntegrityError, match="another family"):
        decode_compressed(BLOBS[0], TensorLayout.of({"a": (50, 9), "b": (5,), "c": (4100,), "d": ()}))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 70_000.0])
def test_weights_that_cannot_be_sent_are_our_own_mistake(bad: float) -> None:
    weights = normal(1)
    weights[2][:] = bad
    with pytest.raises(ValueError, match="cannot be sent"):
        part_of(weights)
