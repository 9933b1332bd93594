"""Rice coding with streams kept apart: every coding is decoded to its gaps, and each list of gaps has one coding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MalformedError
from protocol.weights.rice import max_rice_bytes, near_parameter, rice_bytes, rice_decode, rice_encode

GAPS = st.lists(st.integers(0, 4095), max_size=40).map(lambda gaps: np.array(gaps, np.int64))


@given(GAPS, st.integers(0, 13))
def test_decoding_gives_the_gaps_back_and_every_length_was_foretold(gaps: np.ndarray, parameter: int) -> None:
    coded = rice_encode(gaps, parameter)
    assert len(coded) == rice_bytes(np.bincount(gaps, minlength=1), parameter)
    assert len(coded) <= max_rice_bytes(len(gaps), parameter, int(gaps.sum()) + len(gaps))
    np.testing.assert_array_equal(rice_decode(memoryview(coded), len(gaps), parameter), gaps)


def test_bits_are_where_the_specification_puts_them() -> None:
    # 5 = 1 · 4 + 01₂, 0, 11 = 2 · 4 + 11₂: planes 1,0,1 and 0,0,1; unary 01 1 001
    assert rice_encode(np.array([5, 0, 11]), 2) == bytes([0b101, 0b100, 0b100110])


@given(GAPS.filter(len), st.integers(0, 13), st.data())
def test_any_other_bytes_are_other_gaps_or_refused(gaps: np.ndarray, parameter: int, data: st.DataObject) -> None:
    coded = bytearray(rice_encode(gaps, parameter))
    bit = data.draw(st.integers(0, 8 * len(coded) - 1))
    coded[bit // 8] ^= 1 << bit % 8
    try:
        decoded = rice_decode(memoryview(bytes(coded)), len(gaps), parameter)
    except MalformedError:
        return
    assert (decoded != gaps).any()
    assert rice_encode(decoded, parameter) == bytes(coded)


@pytest.mark.parametrize("raw", [b"", b"\x01", b"\x03\x01", b"\x01\x00", b"\x01\x03", b"\x01\x01\x00"])
def test_one_gap_in_bytes_that_are_not_its_coding_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        rice_decode(memoryview(raw), 1, 1)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_the_near_parameter_is_within_a_sixteenth_of_the_best(gaps: list[int]) -> None:
    array = np.array(gaps, np.int64)
    parameter, length = near_parameter(array, int(array.sum()) + len(array))
    assert length == len(rice_encode(array, parameter))
    assert length <= 1.0625 * min(rice_bytes(np.bincount(array), other) for other in range(12)) + 12  # padded planes
