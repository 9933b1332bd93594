"""The weight diff: exactly the target or exactly the base, and the reason why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import IntegrityError, MalformedError, StaleBaseError
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import (
    DENSE,
    DiffSection,
    Patterns,
    TensorChange,
    apply_diff,
    encode_diff,
    join_diff,
    open_diff,
    pack_tensor,
    patch,
    unpack_tensor,
    weights_hash,
)
from tests.examples import examples

LAYOUT = TensorLayout.of({"matrix": (90, 70), "bias": (7,), "scalar": (), "frozen": (300,)})


def weights(seed: int = 0) -> list[Patterns]:
    """bf16 patterns of normally distributed weights."""
    random = np.random.default_rng(seed)
    return [(random.standard_normal(n, np.float32).view(np.uint32) >> 16).astype(np.uint16) for n in LAYOUT.sizes]


def stepped(base: Sequence[Patterns], rate: float = 0.01) -> list[Patterns]:
    """A step up or down of some of the weights, none of them in the tensor "frozen"."""
    random = np.random.default_rng(1)
    target = [tensor.copy() for tensor in base]
    for name, tensor in zip(LAYOUT.names, target, strict=True):
        if name != "frozen":
            changed = random.random(len(tensor)) < rate
            tensor[changed] += random.choice(np.array([1, 65535], np.uint16), changed.sum())
    return target


def same(left: Sequence[Patterns], right: Sequence[Patterns]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(left, right, strict=True))


@given(st.floats(0, 1), st.booleans())
@examples(40)
def test_applying_gives_the_target_and_applying_twice_is_harmless(rate: float, anything: bool) -> None:
    base = weights()
    target = weights(2) if anything else stepped(base, rate)
    blob = encode_diff(LAYOUT, base, target)
    found = [tensor.copy() for tensor in base]
    assert apply_diff(blob, LAYOUT, found) is not same(base, target)
    assert same(found, target)
    assert apply_diff(blob, LAYOUT, found) is False
    assert same(found, target)


def test_decoded_changes_are_absolute_so_that_patching_twice_is_harmless() -> None:
    base = weights()
    target = stepped(base)
    diff = open_diff(encode_diff(LAYOUT, base, target), LAYOUT)
    changes = [unpack_tensor(section, old) for section, old in zip(diff.sections, base, strict=True)]
    for _ in range(2):
        for tensor, change in zip(base, changes, strict=True):
            patch(tensor, change)
    assert same(base, target)


def test_signed_zeros_and_every_nan_are_told_apart() -> None:
    layout = TensorLayout.of({"a": (4,)})
    base, target = np.array([0x0000, 0x7FC0, 0x8000, 1], np.uint16), np.array([0x8000, 0x7FC1, 0x0000, 1], np.uint16)
    found = [base.copy()]
    apply_diff(encode_diff(layout, [base], [target]), layout, found)
    assert found[0].tolist() == target.tolist()


def test_a_change_of_one_in_a_hundred_takes_few_bytes_each() -> None:
    layout = TensorLayout.of({"a": (200_000,)})
    random = np.random.default_rng(0)
    base = random.integers(0, 2**16, 200_000).astype(np.uint16)
    target = base.copy()
    changed = random.choice(200_000, 2000, replace=False)
    target[changed] += random.choice(np.array([1, 65535], np.uint16), 2000)
    assert len(encode_diff(layout, [base], [target])) <= 1.4 * 2000


def test_weights_that_have_nothing_in_common_travel_whole() -> None:
    [base], [target] = weights()[1:2], weights(2)[1:2]
    section = pack_tensor(base, target)
    assert section.coding == DENSE
    assert unpack_tensor(section, base).positions is None


def test_a_tensor_without_changes_takes_no_bytes_beyond_the_header() -> None:
    base = weights()
    diff = open_diff(encode_diff(LAYOUT, base, stepped(base)), LAYOUT)
    assert len(diff.sections[LAYOUT.names.index("frozen")].content) == 0


def test_a_stale_base_is_told_from_damage_and_neither_changes_a_weight() -> None:
    base = weights()
    blob = encode_diff(LAYOUT, base, stepped(base))
    other = weights(3)
    before = weights_hash(LAYOUT, other)
    with pytest.raises(StaleBaseError):
        apply_diff(blob, LAYOUT, other)
    assert weights_hash(LAYOUT, other) == before
    damaged = blob[:-1] + bytes([blob[-1] ^ 1])
    with pytest.raises(IntegrityError, match="damaged"):
        apply_diff(damaged, LAYOUT, base)
    assert same(base, weights())


def test_a_diff_that_does_not_lead_where_it_says_changes_nothing() -> None:
    base = weights()
    target = stepped(base)
    sections = [pack_tensor(old, new) for old, new in zip(base, target, strict=True)]
    blob = join_diff(LAYOUT, weights_hash(LAYOUT, base), bytes(32), sections)
    with pytest.raises(IntegrityError, match="does not lead"):
        apply_diff(blob, LAYOUT, base)
    assert same(base, weights())


def test_a_diff_for_other_tensors_is_refused() -> None:
    blob = encode_diff(LAYOUT, weights(), stepped(weights()))
    with pytest.raises(IntegrityError, match="another family"):
        open_diff(blob, TensorLayout.of({"matrix": (70, 90)}))


ALTERED: dict[str, Callable[[DiffSection], DiffSection]] = {
    "count above the weights": lambda s: DiffSection(s.coding, 2**32 - 1, s.gap_bytes, s.content),
    "count of one more": lambda s: DiffSection(s.coding, s.count + 1, s.gap_bytes, s.content),
    "count of none": lambda s: DiffSection(s.coding, 0, s.gap_bytes, s.content),
    "unknown coding": lambda s: DiffSection(DENSE + 1, s.count, s.gap_bytes, s.content),
    "dense with gaps": lambda s: DiffSection(DENSE, s.count, s.gap_bytes, s.content),
    "gaps longer than the section": lambda s: DiffSection(s.coding, s.count, 2**63, s.content),
    "gaps that take the frame's bytes": lambda s: DiffSection(s.coding, s.count, s.gap_bytes + 1, s.content),
    "another parameter": lambda s: DiffSection(s.coding + 1, s.count, s.gap_bytes, s.content),
    "enormous parameter": lambda s: DiffSection(31, s.count, s.gap_bytes, s.content),
    "bytes after the frame": lambda s: DiffSection(s.coding, s.count, s.gap_bytes, bytes(s.content) + b"\0"),
    "nothing at all": lambda s: DiffSection(s.coding, s.count, 0, b""),
}


@pytest.mark.parametrize("how", ALTERED)
def test_a_section_that_cannot_be_is_refused(how: str) -> None:
    layout = TensorLayout.of({"a": (6300,)})
    base = weights()[LAYOUT.names.index("matrix")]
    section = pack_tensor(base, stepped(weights())[LAYOUT.names.index("matrix")])
    blob = join_diff(layout, weights_hash(layout, [base]), bytes(32), [ALTERED[how](section)])
    found = base.copy()
    with pytest.raises(MalformedError):
        apply_diff(blob, layout, [found])
    assert (found == base).all()


def test_patching_back_with_what_patching_returned_restores_the_weights() -> None:
    [base] = weights()[1:2]
    tensor = base.copy()
    undo = patch(tensor, TensorChange(len(base), np.array([0, 5]), np.array([1, 2], np.uint16)))
    patch(tensor, undo)
    assert (tensor == base).all()
