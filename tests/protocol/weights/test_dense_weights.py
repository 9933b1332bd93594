"""Whole weights as a blob: bit for bit what went in, or refused; whatever a stranger sends."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from protocol import limits
from protocol.errors import IntegrityError, MalformedError, OversizedError, ProtocolError
from protocol.weights.dense_weights import (
    VALUES_BEGIN,
    WEIGHTS_MAGIC,
    dense_bytes,
    dense_parts,
    encode_dense,
    open_dense,
    widened,
)
from protocol.weights.tensor_layout import TensorLayout
from tests.examples import examples

LARGEST = int(np.float32(limits.UPDATE_MAGNITUDE).view(np.uint32) >> 16)
LAYOUT = TensorLayout.of({"a": (3, 7), "b": (), "c": (40,)})
FIT = st.integers(0, LARGEST) | st.integers(0x8000, 0x8000 | LARGEST)


def patterns(layout: TensorLayout, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, LARGEST, size).astype(np.uint16) for size in layout.sizes]


BLOB = encode_dense(LAYOUT, patterns(LAYOUT))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.data())
def test_every_pattern_of_a_fit_value_comes_back_bit_for_bit(sizes: list[int], data: st.DataObject) -> None:
    layout = TensorLayout.of({f"t{index}": (size,) for index, size in enumerate(sizes)})
    tensors = [data.draw(arrays.arrays(np.uint16, size, elements=FIT)) for size in layout.sizes]
    blob = encode_dense(layout, tensors)
    assert len(blob) == dense_bytes(layout)
    for found, tensor in zip(open_dense(blob, layout), tensors, strict=True):
        assert (found == tensor).all()


def test_arrays_of_any_shape_and_stride_are_taken_in_row_major_order() -> None:
    matrix = np.arange(21, dtype=np.uint16).reshape(7, 3).T  # (3, 7), not contiguous
    scalar, vector = np.array(5, np.uint16), np.arange(80, dtype=np.uint16)[::2]
    found = open_dense(encode_dense(LAYOUT, [matrix, scalar, vector]), LAYOUT)
    assert (found[0].reshape(3, 7) == matrix).all()
    assert found[1].tolist() == [5]
    assert (found[2] == vector).all()


def test_encoding_in_parts_and_opening_a_mapped_file_copy_no_value(tmp_path: Path) -> None:
    tensors = patterns(LAYOUT)
    parts = dense_parts(LAYOUT, tensors)
    assert b"".join(parts) == BLOB
    assert all(np.shares_memory(np.frombuffer(part, np.uint8), t) for part, t in zip(parts[1:], tensors, strict=True))
    (tmp_path / "blob").write_bytes(BLOB)
    with (tmp_path / "blob").open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    opened = open_dense(mapped, LAYOUT)
    assert all(np.shares_memory(np.frombuffer(mapped, np.uint8), tensor) for tensor in opened)
    assert not any(tensor.flags.writeable for tensor in opened)


def test_patterns_stand_for_their_values_and_the_first_lies_at_byte_64() -> None:
    layout = TensorLayout.of({"a": (4,)})
    blob = encode_dense(layout, [np.array([0x3F80, 0xC000, 0x8000, LARGEST], np.uint16)])
    assert blob[VALUES_BEGIN:] == bytes.fromhex("803f00c000808047")
    assert widened(open_dense(blob, layout)[0]).tolist() == [1.0, -2.0, -0.0, limits.UPDATE_MAGNITUDE]


@pytest.mark.parametrize("pattern", [0x7F80, 0xFF80, 0x7F81, 0xFFFF, LARGEST + 1, 0x8000 | (LARGEST + 1)])
@pytest.mark.parametrize("tensor", [0, 2])
def test_a_value_that_is_not_finite_or_too_large_is_refused_by_the_name_of_its_tensor(
    pattern: int, tensor: int
) -> None:
    tensors = patterns(LAYOUT)
    tensors[tensor][-1] = pattern
    with pytest.raises(MalformedError, match=f"^{LAYOUT.names[tensor]} has a value that is not finite or above 65536"):
        open_dense(encode_dense(LAYOUT, tensors), LAYOUT)


def test_the_last_value_of_a_tensor_larger_than_what_is_checked_at_once_is_checked() -> None:
    layout = TensorLayout.of({"a": ((1 << 20) + 3,)})
    tensors = patterns(layout)
    open_dense(encode_dense(layout, tensors), layout)
    tensors[0][-1] = 0x7F80
    with pytest.raises(MalformedError):
        open_dense(encode_dense(layout, tensors), layout)


def test_weights_of_another_layout_are_refused() -> None:
    other = TensorLayout.of({"a": (7, 3), "b": (), "c": (40,)})
    with pytest.raises(IntegrityError, match="another family"):
        open_dense(encode_dense(other, patterns(other)), LAYOUT)


def test_a_header_that_says_more_than_it_must_is_refused() -> None:
    for header in ((LAYOUT.digest, bytes(34) + b"\1"), (LAYOUT.digest, bytes(34)), (LAYOUT.digest, bytes(35), 1)):
        raw = msgspec.msgpack.encode(header)
        with pytest.raises(MalformedError):
            open_dense(WEIGHTS_MAGIC + len(raw).to_bytes(4, "big") + raw + BLOB[VALUES_BEGIN:], LAYOUT)
    with pytest.raises(OversizedError):
        open_dense(b"SLW1" + (limits.TENSOR_HEADER_BYTES + 1).to_bytes(4, "big") + BLOB[8:], LAYOUT)


def test_what_is_not_the_layouts_is_our_own_mistake() -> None:
    tensors = patterns(LAYOUT)
    wrongs: tuple[list[Any], ...] = (
        tensors[:2],
        [*tensors[:2], tensors[2][:39]],
        [t.astype(np.int32) for t in tensors],
    )
    for wrong in wrongs:
        with pytest.raises(ValueError, match="as 16-bit patterns"):
            encode_dense(LAYOUT, wrong)


def test_cut_anywhere_or_with_bytes_behind_it_is_refused() -> None:
    for length in range(len(BLOB)):
        with pytest.raises(ProtocolError):
            open_dense(BLOB[:length], LAYOUT)
    with pytest.raises(ProtocolError):
        open_dense(BLOB + b"\0", LAYOUT)


def test_one_bit_changed_anywhere_gives_fit_values_or_is_refused() -> None:
    refused = 0
    for bit in range(8 * len(BLOB)):
        raw = bytearray(BLOB)
        raw[bit // 8] ^= 1 << bit % 8
        refused += not taken(bytes(raw))
    assert refused >= 8 * VALUES_BEGIN


@given(st.binary(max_size=300) | st.tuples(st.integers(0, len(BLOB)), st.binary(max_size=8)))
@examples(300)
def test_any_bytes_as_weights(raw: bytes | tuple[int, bytes]) -> None:
    taken(raw if isinstance(raw, bytes) else BLOB[: raw[0]] + raw[1] + BLOB[raw[0] + len(raw[1]) :])


def taken(raw: bytes) -> bool:
    try:
        found = open_dense(raw, LAYOUT)
    except ProtocolError:
        return False
    assert [len(tensor) for tensor in found] == list(LAYOUT.sizes)
    assert all((np.abs(widened(tensor)) <= limits.UPDATE_MAGNITUDE).all() for tensor in found)
    return True
