"""Both rules behind their interface: an offer without a result leaves no trace, a hostile blob changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from node.averaging import compressed, noloco
from node.averaging.compressed import MAX_DISTANCE_RATIO, CompressedState
from node.averaging.noloco import OuterState
from node.averaging.rules import (
    COMPRESSED,
    MAX_DENSE_WEIGHTS,
    AveragingRule,
    CompressedOffering,
    CompressedRule,
    DenseRule,
    State,
    averaging_snapshot,
    moved,
    restore_averaging,
    rule_of,
)
from node.configuration import AveragingSection
from node.policy.weight_layout import layout_of
from protocol.errors import IntegrityError, ProtocolError, StorageError
from protocol.weights.compressed_weights import decode_compressed, encode_compressed
from protocol.weights.sparse_update import encode_update

SHAPES = {"tail": (9000,), "head": (60, 100), "scale": ()}


def weights(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def plus(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one[name] + other[name] for name in one}


def digest(*trees: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for tree in trees:
        for name, tensor in sorted(tree.items()):
            hashed.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return hashed.hexdigest()


def going_on(seed: int, spread: float = 0.1) -> CompressedState:
    """A replica that has averaged before, with something left to send."""
    known = np.full(len(SHAPES), spread, np.float32)
    return CompressedState(plus(weights(0), weights(seed, 0.05)), weights(seed + 50, 0.01), known, 3)


def offered(seed: int, spread: float = 0.1) -> CompressedOffering:
    before = going_on(seed, spread)
    return CompressedRule().offer(
        plus(before.outer, weights(seed + 90, 0.1)), before, afresh=False, random=Random(seed)
    )


def content(offering: CompressedOffering) -> bytes:
    return b"".join(offering.content)


def norm(tensors: Mapping[str, Tensor]) -> float:
    return sum(float(tensor.square().sum()) for tensor in tensors.values()) ** 0.5


def minus(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one[name] - other[name] for name in one}


@pytest.mark.parametrize(
    ("encoding", "count", "expected", "because"),
    [
        ("auto", MAX_DENSE_WEIGHTS, "dense-bf16", "no more than 50,000,000"),
        ("auto", MAX_DENSE_WEIGHTS + 1, "sparse-2bit", "more than 50,000,000: compressed"),
        ("dense-bf16", 10**9, "dense-bf16", "averaging.encoding is dense-bf16"),
        ("sparse-2bit", 1, "sparse-2bit", "averaging.encoding is sparse-2bit"),
    ],
)
def test_the_rule_follows_from_the_configuration_and_the_number_of_weights(
    encoding: str, count: int, expected: str, because: str
) -> None:
    rule, said = rule_of(AveragingSection(encoding=encoding), count)  # type: ignore[arg-type]
    assert rule.encoding == expected and because in said


def test_a_compressed_exchange_is_the_formula_for_both() -> None:
    one, other = offered(1), offered(2)
    for ours, theirs in ((one, other), (other, one)):
        found = ours.averaged(memoryview(content(theirs)), 1.0)
        received = decode_compressed(content(theirs), layout_of(weights(0)))
        expected, _ = compressed.outer_step(ours.start, ours.sent, received, COMPRESSED)
        assert digest(averaging_snapshot(found.state)) == digest(averaging_snapshot(expected))
        assert found.state.steps == 4
        apart = norm(minus(one.start.outer, other.start.outer)) / norm(ours.start.outer)
        assert found.distance == pytest.approx(apart, rel=0.25)  # told from one element in 18


@pytest.mark.parametrize("rule", [DenseRule(), CompressedRule()])
@pytest.mark.parametrize("afresh", [False, True])
def test_an_offer_of_which_nothing_comes_leaves_no_trace(rule: AveragingRule, afresh: bool) -> None:
    before: State = going_on(1) if isinstance(rule, CompressedRule) else noloco.begin(weights(1), steps=3)
    learnt = plus(before.outer, weights(2, 0.1))
    told = digest(averaging_snapshot(before), learnt)
    first = rule.offer(learnt, before, afresh=afresh, random=Random(1))
    assert digest(averaging_snapshot(before), learnt) == told
    again = rule.offer(learnt, before, afresh=afresh, random=Random(1))
    assert b"".join(first.content) == b"".join(again.content)  # the residual too is where it was
    assert first.size_bytes == len(b"".join(first.content))


def forged(seed: int, **changes: object) -> bytes:
    """A blob of this replica with another slice."""
    layout = layout_of(weights(0))
    found = decode_compressed(content(offered(seed)), layout)
    return encode_compressed(layout, encode_update(layout, found.update), replace(found.part, **changes))  # type: ignore[arg-type]


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda blob: blob[:-1],
    "bytes behind": lambda blob: blob + b"\0",
    "something else": lambda blob: bytes(len(blob)),
    "nothing": lambda blob: b"",
    "a header of anything": lambda blob: blob[:8] + bytes(len(blob) - 8),
    "another layout": lambda blob: content(
        CompressedRule().offer({"other": torch.ones(5)}, None, afresh=False, random=Random(1))
    ),
    "a step that is not a number": lambda blob: forged(2, steps=np.full(3, np.nan, np.float32)),
    "a step of zero": lambda blob: forged(2, steps=np.zeros(3, np.float32)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_blob_is_refused_and_the_next_exchange_is_as_if_it_had_never_come(kind: str) -> None:
    ours, good = offered(1), content(offered(2))
    before = digest(averaging_snapshot(ours.start))
    expected = digest(averaging_snapshot(offered(1).averaged(memoryview(good), 1.0).state))
    with pytest.raises(ProtocolError):
        ours.averaged(memoryview(HOSTILE[kind](good)), 1.0)
    assert digest(averaging_snapshot(ours.start)) == before
    assert digest(averaging_snapshot(ours.averaged(memoryview(good), 1.0).state)) == expected


def test_a_slice_with_enormous_steps_moves_us_no_further_than_distances_that_we_know_of() -> None:
    ours = offered(1)
    usual = ours.averaged(memoryview(content(offered(2))), 1.0).state
    found = ours.averaged(memoryview(forged(2, steps=np.full(3, 65_536.0, np.float32))), 1.0).state
    assert isinstance(found, CompressedState) and isinstance(usual, CompressedState)
    in_slice = sum(tensor.numel() for tensor in weights(0).values()) / COMPRESSED.stride
    assert norm(minus(found.outer, usual.outer)) < MAX_DISTANCE_RATIO * 0.1 * in_slice**0.5
    assert (found.spread <= np.float32(MAX_DISTANCE_RATIO * 0.1)).all()


def test_weights_that_are_not_finite_are_offered_by_neither_rule() -> None:
    bad = weights(1)
    bad["tail"][3] = float("inf")
    for rule in (DenseRule(), CompressedRule()):
        with pytest.raises(IntegrityError, match="our own weights"):
            rule.offer(bad, None, afresh=False, random=Random(1))


@pytest.mark.parametrize("afresh", [False, True])
def test_a_replica_loses_nothing_that_it_learnt_however_long_ago_it_averaged_and_tells_the_most_of_it(
    afresh: bool,
) -> None:
    before = going_on(1)
    learnt = plus(before.outer, weights(7, 1.0))
    offering = CompressedRule().offer(learnt, before, afresh=afresh, random=Random(1))
    told = decode_compressed(content(offering), layout_of(learnt))
    assert all(float(np.abs(sent.values).max()) > 1.0 for sent in told.update if sent.size > 1)
    silent = CompressedRule().offer(learnt, None, afresh=False, random=Random(1))  # has learnt nothing
    after = offering.averaged(memoryview(content(silent)), 0.0).state
    further = minus(moved(learnt, learnt, after), learnt)  # what was told counts α times, and all else once
    for (name, shape), sent in zip(layout_of(learnt).tensors, told.update, strict=True):
        expected = np.zeros(learnt[name].numel(), np.float32)
        expected[sent.positions] = (COMPRESSED.outer_rate - 1.0) * sent.values
        np.testing.assert_allclose(further[name].numpy(), expected.reshape(shape), atol=1e-5)
    assert norm(minus(after.outer, learnt)) > 0.5 * norm(weights(7, 1.0))  # most of it is still to be sent


def test_what_is_learnt_during_an_exchange_comes_on_top_of_the_step() -> None:
    ours = offered(1)
    theta = plus(going_on(1).outer, weights(91, 0.1))
    after = ours.averaged(memoryview(content(offered(2))), 1.0).state
    since = weights(5, 0.1)
    still, later = moved(theta, theta, after), moved(plus(theta, since), theta, after)
    assert norm(minus(minus(later, still), since)) < 1e-6 * norm(theta)
    assert isinstance(after, CompressedState)
    assert norm(minus(still, plus(after.outer, after.residual))) == 0


def test_a_first_offer_has_nothing_to_tell_and_the_first_step_only_begins() -> None:
    first = CompressedRule().offer(weights(1), None, afresh=True, random=Random(1))
    assert isinstance(first, CompressedOffering)
    assert all(not sent.values.any() for sent in first.sent.update)
    after = first.averaged(memoryview(content(offered(2))), 1.0).state
    assert digest(after.outer) == digest(weights(1))
    assert after.steps == 1


@pytest.mark.parametrize("state", [noloco.begin(weights(1), steps=4), going_on(2)])
def test_either_state_comes_back_from_a_checkpoint(state: State) -> None:
    found = restore_averaging({"other": torch.zeros(1), **averaging_snapshot(state)}, weights(5))
    assert type(found) is type(state) and found is not None
    assert digest(averaging_snapshot(found)) == digest(averaging_snapshot(state))
    assert restore_averaging({"other": torch.zeros(1)}, weights(5)) is None
    with pytest.raises(StorageError):
        restore_averaging(averaging_snapshot(state), {"tail": torch.zeros(2)})


def test_a_node_that_changes_its_rule_goes_on_from_where_its_last_step_left_it() -> None:
    dense, sparse = noloco.begin(weights(1), steps=4), going_on(2)
    learnt = plus(weights(1), weights(3, 0.1))
    to_sparse = CompressedRule().offer(learnt, dense, afresh=False, random=Random(1))
    to_dense = DenseRule().offer(learnt, sparse, afresh=False, random=Random(1))
    assert isinstance(to_dense.start, OuterState)
    assert digest(to_sparse.start.outer) == digest(dense.outer) and to_sparse.start.steps == 4
    assert digest(to_dense.start.outer) == digest(plus(sparse.outer, sparse.residual)) and to_dense.start.steps == 3
