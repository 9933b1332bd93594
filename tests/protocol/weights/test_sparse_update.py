"""The sparse update: what is chosen, what is left, what travels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.errors import IntegrityError, MalformedError
from protocol.weights import sparse_update
from protocol.weights.sparse_update import PLAIN, TensorSection, decode_update, encode_update, join_update, pack_section
from protocol.weights.sparsify import CHUNK_ELEMENTS, SparseTensor, kept_count, scatter_mean, sparsify
from protocol.weights.tensor_layout import TensorLayout
from tests.examples import examples

LAYOUT = TensorLayout.of({"matrix": (100, 83), "bias": (7,), "whole": (4096,), "scalar": (), "one more": (4097,)})


def normal(size: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def update(layout: TensorLayout = LAYOUT, kept: int = 64) -> list[SparseTensor]:
    return [sparsify(normal(n, n), normal(n, n + 1), decay=0.95, kept=kept) for n in layout.sizes]


def assert_equal(found: SparseTensor, expected: SparseTensor) -> None:
    assert (found.size, found.kept) == (expected.size, expected.kept)
    for name in ("indices", "codes", "codebook"):
        assert getattr(found, name).dtype == getattr(expected, name).dtype
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_what_is_sent_and_what_is_left_add_up_to_what_came_in() -> None:
    residual, delta = normal(10_000), normal(10_000, 1)
    accumulated = residual * np.float32(0.9) + delta
    sparse = sparsify(residual, delta, decay=0.9, kept=64)
    untouched = np.ones(10_000, bool)
    untouched[sparse.positions] = False
    np.testing.assert_array_equal(residual[untouched], accumulated[untouched])
    np.testing.assert_array_equal(residual[sparse.positions], accumulated[sparse.positions] - sparse.values)


def test_the_greatest_of_each_chunk_are_sent_and_the_short_chunk_sends_its_share() -> None:
    size = 2 * CHUNK_ELEMENTS + 65
    values = normal(size)
    sparse = sparsify(np.zeros(size, np.float32), values, decay=1.0, kept=64)
    assert len(sparse.indices) == 64 + 64 + 2 == kept_count(size, 64)
    for start, chosen in ((0, slice(64)), (CHUNK_ELEMENTS, slice(64, 128)), (2 * CHUNK_ELEMENTS, slice(128, 130))):
        chunk = np.abs(values[start : start + CHUNK_ELEMENTS])
        expected = np.sort(np.argsort(-chunk)[: len(sparse.indices[chosen])])
        np.testing.assert_array_equal(sparse.indices[chosen], expected)


def test_among_equal_magnitudes_the_lower_index_is_sent() -> None:
    values = np.tile(np.array([1, -1], np.float32), CHUNK_ELEMENTS // 2)
    values[70] = 2
    sparse = sparsify(np.zeros(CHUNK_ELEMENTS, np.float32), values, decay=1.0, kept=5)
    assert sparse.indices.tolist() == [0, 1, 2, 3, 70]


def test_a_code_is_the_sign_and_whether_the_root_mean_square_is_reached() -> None:
    values = np.array([-4, -1, 1, 4], np.float32)  # root mean square √8.5
    sparse = sparsify(np.zeros(4, np.float32), values, decay=1.0, kept=4096)
    assert sparse.codes.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(sparse.codebook, values)


def test_nothing_but_zeros_sends_zeros() -> None:
    residual = np.zeros(5000, np.float32)
    sparse = sparsify(residual, np.zeros(5000, np.float32), decay=0.95, kept=64)
    assert not sparse.values.any()
    assert not residual.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 65_537.0])
def test_values_that_cannot_be_sent_are_refused(bad: float) -> None:
    delta = normal(5000)
    delta[4999] = bad
    with pytest.raises(ValueError, match="an update holds"):
        sparsify(np.zeros(5000, np.float32), delta, decay=0.95, kept=64)


def test_error_feedback_sends_everything_in_the_end() -> None:
    residual, delta = np.zeros(CHUNK_ELEMENTS, np.float32), normal(CHUNK_ELEMENTS)
    received = np.zeros(CHUNK_ELEMENTS, np.float32)
    for _ in range(200):
        sparse = sparsify(residual, delta, decay=1.0, kept=64)
        received[sparse.positions] += sparse.values
        delta = np.zeros_like(delta)
    assert np.linalg.norm(residual) < 0.03 * np.linalg.norm(received)


@given(st.integers(1, 4096), st.integers(0, 2**32))
@examples(40)
def test_decoding_gives_the_update_back(kept: int, seed: int) -> None:
    layout = TensorLayout.of({"a": (4096 + seed % 300,), "b": (1 + seed % 11,)})
    tensors = [sparsify(normal(n, seed), normal(n, seed + 1), decay=0.5, kept=kept) for n in layout.sizes]
    for found, expected in zip(decode_update(encode_update(layout, tensors), layout), tensors, strict=True):
        assert_equal(found, expected)


def test_indices_that_rice_would_lengthen_take_twelve_bits() -> None:
    layout = TensorLayout.of({"a": (3, CHUNK_ELEMENTS)})
    [tensor] = update(layout, kept=1)  # one a chunk: each index is as likely as every other
    section = pack_section(tensor)
    a, b, c = tensor.indices.tolist()
    assert section.coding == PLAIN
    assert section.content[:5] == bytes([a & 255, a >> 8 | (b & 15) << 4, b >> 4, c & 255, c >> 8])
    [found] = decode_update(encode_update(layout, [tensor]), layout)
    assert_equal(found, tensor)


def test_at_64_of_4096_an_update_takes_a_146th_of_float32_at_most() -> None:
    layout = TensorLayout.of({"a": (256, 4096)})
    blob = encode_update(layout, update(layout))
    assert 4 * 256 * 4096 / len(blob) >= 146


def test_an_update_for_other_tensors_is_refused() -> None:
    other = TensorLayout.of({"matrix": (83, 100)})
    with pytest.raises(IntegrityError, match="another family"):
        decode_update(encode_update(LAYOUT, update()), other)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -70_000.0])
def test_a_codebook_that_is_not_finite_or_enormous_is_refused(bad: float) -> None:
    tensors = update()
    tensors[1].codebook[2] = bad
    with pytest.raises(MalformedError, match="codebook"):
        decode_update(encode_update(LAYOUT, tensors), LAYOUT)


@pytest.mark.parametrize("indices", [[3, 3], [4, 3], [99, 100], [0, 4095]])
def test_indices_that_repeat_fall_or_lie_outside_are_refused(indices: list[int]) -> None:
    layout = TensorLayout.of({"a": (100,)})
    assert kept_count(100, 80) == 2
    content = sparse_update.pack_plain(np.array(indices, np.uint16)) + b"\0"
    blob = join_update(layout, 80, [TensorSection(PLAIN, 3, np.zeros(4, np.float32), content)])
    with pytest.raises(MalformedError, match="indices"):
        decode_update(blob, layout)


def sparse(size: int, indices: list[int], values: list[float]) -> SparseTensor:
    """Of up to four values that differ, each with a code of its own."""
    book = sorted(set(values)) + [0.0] * (4 - len(set(values)))
    codes = np.array([book.index(value) for value in values], np.uint8)
    kept = -(-len(indices) * CHUNK_ELEMENTS // size)
    return SparseTensor(size, kept, np.array(indices, np.uint16), codes, np.array(book, np.float32))


def test_the_mean_at_an_index_is_over_those_that_sent_it() -> None:
    mean = scatter_mean([sparse(8, [1, 3], [2.0, 2.0]), sparse(8, [3, 7], [-2.0, 2.0])])
    assert mean.tolist() == [0, 2, 0, 0, 0, 0, 0, 2]


def test_an_update_of_enormous_norm_counts_as_much_as_the_median_one() -> None:
    honest = [sparse(8, [0, 1], [3.0, 4.0]), sparse(8, [0, 1], [3.0, 4.0])]
    mean = scatter_mean([*honest, sparse(8, [4, 5], [30_000.0, 40_000.0])])
    np.testing.assert_allclose(mean, [3, 4, 0, 0, 3, 4, 0, 0], rtol=1e-6)


def test_of_two_updates_both_count_as_the_smaller() -> None:
    mean = scatter_mean([sparse(8, [0], [1.0]), sparse(8, [7], [-1000.0])])
    assert mean.tolist() == [1, 0, 0, 0, 0, 0, 0, -1]


def test_updates_of_unequal_sizes_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="sizes"):
        scatter_mean([sparse(8, [0], [1.0]), sparse(9, [0], [1.0])])
