from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.errors import MalformedError, OversizedError, ProtocolError
from protocol.structure import check_structure

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=40,
)


def depth(value: Any) -> int:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def nested(levels: int) -> bytes:
    return b"\x91" * levels + b"\x00"


@given(VALUES)
def test_whatever_msgspec_encodes_is_sound_unless_nested_too_deeply(value: Any) -> None:
    raw = msgspec.msgpack.encode(value)
    if depth(value) <= limits.NESTING_DEPTH:
        check_structure(raw)
    else:
        with pytest.raises(OversizedError):
            check_structure(raw)


@given(st.binary(max_size=200))
def test_accepts_nothing_that_msgspec_would_not_read(raw: bytes) -> None:
    try:
        check_structure(raw)
    except ProtocolError:
        return
    # What remains is the schema's concern: text that is not UTF-8, a map with a key that Python cannot hash.
    with contextlib.suppress(UnicodeDecodeError, msgspec.ValidationError, TypeError):
        msgspec.msgpack.decode(raw)


@given(VALUES, st.data())
def test_every_proper_prefix_is_malformed(value: Any, data: st.DataObject) -> None:
    raw = msgspec.msgpack.encode(value)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(ProtocolError):
        check_structure(raw[:cut])


def test_nesting_is_allowed_to_the_bound_and_no_further() -> None:
    check_structure(nested(limits.NESTING_DEPTH))
    with pytest.raises(OversizedError, match=f"deeper than {limits.NESTING_DEPTH}"):
        check_structure(nested(limits.NESTING_DEPTH + 1))


def test_a_million_levels_are_refused_at_once_and_do_not_recurse() -> None:
    with pytest.raises(OversizedError):
        check_structure(nested(1_000_000))


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\xdd\xff\xff\xff\xff" + bytes(10), id="array of 4 billion"),
        pytest.param(b"\xdf\xff\xff\xff\xff" + bytes(10), id="map of 4 billion"),
        pytest.param(b"\xdc\xff\xff" + bytes(10), id="array of 65535"),
        pytest.param(b"\xde\x00\x06" + bytes(11), id="map of 6 with 11 values"),
        pytest.param(b"\xc6\xff\xff\xff\xff" + bytes(10), id="bin of 4 GiB"),
        pytest.param(b"\xdb\xff\xff\xff\xff" + bytes(10), id="str of 4 GiB"),
        pytest.param(b"\xd9\x05abc", id="str of 5 with 3"),
        pytest.param(b"\xc4", id="bin without its length"),
        pytest.param(b"\xcf\x00\x00", id="u64 cut short"),
        pytest.param(b"\x92\x00", id="array cut short"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_length_that_the_bytes_do_not_cover_is_malformed_and_allocates_nothing(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match="claims" if len(raw) > 1 else "ends within a value|claims"):
            check_structure(raw)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_bytes_after_the_end_are_malformed() -> None:
    with pytest.raises(MalformedError, match="2 bytes after the end"):
        check_structure(b"\x90\x00\x00")


@pytest.mark.parametrize("first", [0xC1, 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8])
def test_extension_types_are_malformed(first: int) -> None:
    with pytest.raises(MalformedError, match=f"0x{first:02x}"):
        check_structure(bytes([first]) + bytes(20))


@pytest.mark.parametrize("raw", [b"\xca\x7f\xc0\x00\x00", b"\xca\xff\x80\x00\x00", b"\xcb\x7f\xf0" + bytes(6)])
def test_number_that_is_not_finite_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedError, match="not finite"):
        check_structure(raw)


def test_more_values_than_allowed_are_oversized() -> None:
    def flat(values: int) -> bytes:
        return b"\xdd" + (values - 1).to_bytes(4, "big") + bytes(values - 1)

    check_structure(flat(limits.MESSAGE_VALUES))
    with pytest.raises(OversizedError, match=str(limits.MESSAGE_VALUES)):
        check_structure(flat(limits.MESSAGE_VALUES + 1))
