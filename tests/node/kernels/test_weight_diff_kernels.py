"""The fast weight diff makes and accepts the reference's bytes; afterwards weights are base or target, by hash."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from node.kernels.weight_diff_kernels import (
    apply_diff_fast,
    changes_between,
    encode_diff_fast,
    pack_diff_fast,
    patterns_of,
    unpack_diff_fast,
    weights_hash_fast,
)
from protocol.errors import IntegrityError, MalformedError, StaleBaseError
from protocol.weights import weight_diff as reference
from protocol.weights.tensor_layout import TensorLayout
from tests.examples import examples

LAYOUT = TensorLayout.of({"matrix": (90, 71), "bias": (63,), "scalar": (), "frozen": (300,)})
Patterns = NDArray[np.uint16]


def patterns(seed: int) -> list[Patterns]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 2**16, size).astype(np.uint16) for size in LAYOUT.sizes]


def changed(base: Sequence[Patterns], rate: float) -> list[Patterns]:
    random = np.random.default_rng(7)
    rates = {name: 0 if name == "frozen" else rate for name in LAYOUT.names}
    return [
        np.where(random.random(len(b)) < rates[n], b + np.uint16(1), b) for n, b in zip(LAYOUT.names, base, strict=True)
    ]


def tensors(arrays: Sequence[Patterns]) -> list[Tensor]:
    """bf16 tensors over the arrays' memory, in the layout's shapes."""
    shapes = [shape for _, shape in LAYOUT.tensors]
    flat = [torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in arrays]
    return [tensor.reshape(shape) for tensor, shape in zip(flat, shapes, strict=True)]


def encoded(base: Sequence[Patterns], target: Sequence[Patterns]) -> bytes:
    hashes = [weights_hash_fast(LAYOUT, tensors(weights)) for weights in (base, target)]
    return encode_diff_fast(LAYOUT, tensors(base), tensors(target), base_hash=hashes[0], target_hash=hashes[1])


def same(left: Sequence[Patterns], right: Sequence[Patterns]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("rate", [0, 1e-3, 0.01, 0.1, 0.6, 1])
def test_bytes_are_those_of_the_reference_and_lead_to_the_target(rate: float) -> None:
    base = patterns(0)
    target = changed(base, rate)
    blob = encoded(base, target)
    assert blob == reference.encode_diff(LAYOUT, base, target)
    current = reference.weights_hash(LAYOUT, base)
    assert apply_diff_fast(blob, LAYOUT, tensors(base), current=current) is (rate > 0)
    assert same(base, target)
    assert apply_diff_fast(blob, LAYOUT, tensors(base), current=reference.weights_hash(LAYOUT, base)) is False


def test_weights_that_have_nothing_in_common_travel_whole() -> None:
    base, target = patterns(0), patterns(1)
    blob = encoded(base, target)
    assert blob == reference.encode_diff(LAYOUT, base, target)
    apply_diff_fast(blob, LAYOUT, tensors(base), current=reference.weights_hash(LAYOUT, base))
    assert same(base, target)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200, 70_000])
def test_changes_at_both_ends_and_everywhere_are_found(size: int) -> None:
    base = np.zeros(size, np.uint16)
    for where in ([0], [size - 1], range(size)):
        target = base.copy()
        target[list(where)] = 1
        positions, zigzags = changes_between(base, target)
        assert positions.tolist() == list(where)
        assert (zigzags == 2).all()


def test_a_stale_base_and_a_wrong_target_leave_every_weight_as_it_was() -> None:
    base = patterns(0)
    blob = encoded(base, changed(base, 0.01))
    with pytest.raises(StaleBaseError):
        apply_diff_fast(blob, LAYOUT, tensors(base), current=bytes(32))
    other = patterns(3)
    with pytest.raises(IntegrityError, match="does not lead"):
        apply_diff_fast(blob, LAYOUT, tensors(other), current=reference.weights_hash(LAYOUT, base))
    assert same(base, patterns(0))
    assert same(other, patterns(3))


@given(st.data())
@examples(300)
def test_a_hostile_section_is_refused_by_both_or_means_the_same_to_both(data: st.DataObject) -> None:
    base = patterns(0)[LAYOUT.names.index("frozen")]
    target = np.where(np.random.default_rng(1).random(300) < 0.1, base + np.uint16(3), base)
    sound = pack_diff_fast(base, target)
    content = bytearray(sound.content)
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    section = reference.DiffSection(
        data.draw(st.sampled_from([sound.coding, sound.coding + 1, 0, 31])),
        data.draw(st.sampled_from([sound.count, sound.count + 1, sound.count - 1, 300])),
        data.draw(st.sampled_from([sound.gap_bytes, sound.gap_bytes - 1, sound.gap_bytes + 1, 0])),
        bytes(content),
    )
    fast, expected = base.copy(), base.copy()
    with contextlib.suppress(MalformedError):
        unpack_diff_fast(section, len(base)).move(fast, 1)
    with contextlib.suppress(MalformedError):
        reference.patch(expected, reference.unpack_tensor(section, base))
    np.testing.assert_array_equal(fast, expected)


@pytest.mark.parametrize("tensor", [torch.zeros(4), torch.zeros(4, 4, dtype=torch.bfloat16).T[1:]])
def test_weights_of_another_kind_are_refused(tensor: Tensor) -> None:
    with pytest.raises(ValueError, match="contiguous bfloat16"):
        patterns_of([tensor])
