"""Whatever a stranger sends as an update or a diff: tensors that keep every promise, or a ``ProtocolError``."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.errors import ProtocolError
from protocol.weights.sparse_update import (
    UPDATE_MAGIC,
    TensorSection,
    decode_update,
    encode_update,
    join_update,
    open_update,
)
from protocol.weights.sparsify import kept_count, sparsify
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import DiffSection, apply_diff, encode_diff, join_diff, open_diff, unpack_tensor
from tests.examples import examples
from tests.protocol.mutation import mutated

LAYOUT = TensorLayout.of({"a": (9, 50), "b": (5,), "c": (4100,)})
RANDOM = np.random.default_rng(0)


def _update(kept: int) -> bytes:
    deltas = [RANDOM.standard_normal(n, np.float32) for n in LAYOUT.sizes]
    return encode_update(LAYOUT, [sparsify(np.zeros_like(d), d, decay=0.9, kept=kept) for d in deltas])


BASE = [RANDOM.integers(0, 2**16, n).astype(np.uint16) for n in LAYOUT.sizes]
TARGET = [np.where(RANDOM.random(len(b)) < 0.03, b + 1, b).astype(np.uint16) for b in BASE]
DIFF = encode_diff(LAYOUT, BASE, TARGET)
UPDATES = [_update(64), _update(1)]


def take_update(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        for tensor, size in zip(decode_update(raw, LAYOUT), LAYOUT.sizes, strict=True):
            positions = tensor.positions
            assert len(positions) == len(tensor.codes) == kept_count(size, tensor.kept)
            assert (np.diff(positions) > 0).all()
            assert positions[-1] < size
            assert tensor.codes.max() < 4
            assert (np.abs(tensor.codebook) <= limits.UPDATE_MAGNITUDE).all()


def take_diff(raw: bytes) -> None:
    found = [tensor.copy() for tensor in BASE]
    try:
        apply_diff(raw, LAYOUT, found)
    except ProtocolError:
        assert all((a == b).all() for a, b in zip(found, BASE, strict=True))
    else:
        assert all((a == b).all() for a, b in zip(found, TARGET, strict=True))


@given(st.binary(max_size=300) | mutated(UPDATES, header_bytes=90))
@examples(400)
def test_any_bytes_as_an_update(raw: bytes) -> None:
    take_update(raw)


@given(st.binary(max_size=300) | mutated([DIFF], header_bytes=90))
@examples(300)
def test_any_bytes_as_a_diff(raw: bytes) -> None:
    take_diff(raw)


@given(st.data())
@examples(300)
def test_any_bytes_as_a_section_of_a_sound_update(data: st.DataObject) -> None:
    kept, sections = open_update(UPDATES[0], LAYOUT)
    index = data.draw(st.integers(0, 2))
    old = sections[index]
    content = data.draw(mutated([bytes(old.content)], header_bytes=90))
    codes = len(old.content) - old.index_bytes
    section = TensorSection(data.draw(st.integers(0, 13)), max(len(content) - codes, 0), old.codebook, content)
    take_update(join_update(LAYOUT, kept, [section if i == index else s for i, s in enumerate(sections)]))


@given(st.data())
@examples(300)
def test_any_bytes_as_an_undamaged_section_of_a_diff(data: st.DataObject) -> None:
    diff = open_diff(DIFF, LAYOUT)
    index = data.draw(st.integers(0, 2))
    old = diff.sections[index]
    section = DiffSection(
        data.draw(st.sampled_from([old.coding, 0, 31, 32, 33])),
        data.draw(st.sampled_from([old.count, old.count + 1, 0, 1, LAYOUT.sizes[index]])),
        data.draw(st.sampled_from([old.gap_bytes, 0, 2**40]) | st.integers(0, 40)),
        data.draw(mutated([bytes(old.content)], header_bytes=90)),
    )
    sections = [section if i == index else s for i, s in enumerate(diff.sections)]
    blob = join_diff(LAYOUT, diff.base, diff.target, sections)
    with contextlib.suppress(ProtocolError):
        for part, old_weights in zip(open_diff(blob, LAYOUT).sections, BASE, strict=True):
            change = unpack_tensor(part, old_weights)
            assert len(change.values) == (change.size if change.positions is None else len(change.positions))
    take_diff(blob)


@pytest.mark.parametrize("blob", [*UPDATES, DIFF], ids=["update", "update, 12 bits", "diff"])
def test_cut_anywhere_is_refused(blob: bytes) -> None:
    for length in range(len(blob)):
        with pytest.raises(ProtocolError):
            if blob[:4] == UPDATE_MAGIC:
                decode_update(blob[:length], LAYOUT)
            else:
                open_diff(blob[:length], LAYOUT)


def test_one_bit_changed_anywhere_gives_the_target_or_leaves_the_base() -> None:
    for bit in range(8 * len(DIFF)):
        raw = bytearray(DIFF)
        raw[bit // 8] ^= 1 << bit % 8
        take_diff(bytes(raw))


def test_bytes_after_the_end_are_refused() -> None:
    for blob, decode in ((UPDATES[0], decode_update), (DIFF, open_diff)):
        with pytest.raises(ProtocolError):
            decode(blob + b"\0", LAYOUT)


@pytest.mark.parametrize(
    "shapes", [{}, {"a": (0,)}, {"a": (2**16, 2**16)}], ids=["no tensor", "no element", "too many elements"]
)
def test_a_layout_that_cannot_travel_is_our_own_mistake(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="are allowed"):
        TensorLayout.of(shapes)


def test_a_layout_is_the_same_whatever_the_order_and_another_for_another_shape() -> None:
    layout = TensorLayout.of({"b": (2, 3), "a": (1,)})
    assert layout.names == ("a", "b")
    assert layout.digest == TensorLayout.of({"a": (1,), "b": (2, 3)}).digest
    assert layout.digest != TensorLayout.of({"a": (1,), "b": (3, 2)}).digest
