"""Compressed averaging follows the formula, leaves no trace if it is not done, and draws replicas together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from node.averaging import compressed
from node.averaging.compressed import CompressedConstants, CompressedOffer, CompressedState, mean_update
from node.policy.weight_layout import layout_of
from protocol.errors import StorageError
from protocol.weights import sparsify
from protocol.weights.compressed_weights import Compressed, decode_compressed
from protocol.weights.sparsify import SparseTensor, norm_of
from protocol.weights.weight_slice import slice_elements
from tests.examples import examples

SHAPES = {"head": (30, 150), "scale": (), "tail": (70,)}
USUAL = CompressedConstants()
EVERYTHING = CompressedConstants(kept=4096, stride=1, bits=8)


def weights(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def plus(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one[name] + other[name] for name in one}


def digest(state: CompressedState) -> str:
    tensors = compressed.snapshot(state)
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()


def received(sent: CompressedOffer) -> Compressed:
    return decode_compressed(sent.blob, layout_of(weights(0)))


def distance(one: CompressedState, other: CompressedState) -> float:
    return sum(float((one.outer[n] - other.outer[n]).square().sum()) for n in SHAPES) ** 0.5


def exchanged(
    one: CompressedState, other: CompressedState, constants: CompressedConstants = USUAL, *, phase: int = 0
) -> tuple[CompressedState, CompressedState]:
    """Both states after an exchange, with nothing learnt before it."""
    ours, theirs = (compressed.make_offer(s, s.outer, phase, constants) for s in (one, other))
    return (
        compressed.outer_step(one, ours, received(theirs), constants)[0],
        compressed.outer_step(other, theirs, received(ours), constants)[0],
    )


def test_the_step_is_the_formula() -> None:
    base, constants = weights(1), replace(USUAL, stride=7)
    one = replace(compressed.begin(base), spread=np.full(3, 0.1, np.float32))
    other = replace(compressed.begin(plus(base, weights(2, 0.05))), spread=np.full(3, 0.1, np.float32))
    learnt, theirs_learnt = weights(3, 0.1), weights(4, 0.1)
    learnt["scale"] = -theirs_learnt["scale"]  # of one length: neither is scaled down
    ours = compressed.make_offer(one, plus(one.outer, learnt), 2, constants)
    theirs = compressed.make_offer(other, plus(other.outer, theirs_learnt), 3, constants)
    after, _ = compressed.outer_step(one, ours, received(theirs), constants)
    where = slice_elements(layout_of(base), 7, 3)
    for index, name in enumerate(sorted(SHAPES)):
        both, residuals = [], []
        for state, offered in ((one, plus(one.outer, learnt)), (other, plus(other.outer, theirs_learnt))):
            residual = np.zeros(base[name].numel(), np.float32)
            change = (offered[name] - state.outer[name]).reshape(-1).numpy()
            both.append(sparsify.sparsify(residual, change, decay=1.0, kept=USUAL.kept))
            residuals.append(residual)
        expected = one.outer[name].reshape(-1).numpy().astype(np.float64)
        total, senders = np.zeros((2, len(expected)))
        for update in both:
            total[update.positions] += update.values
            senders[update.positions] += 1
        expected += constants.outer_rate * total / np.maximum(senders, 1)
        apart = (other.outer[name] - one.outer[name]).reshape(-1).numpy()[where[index]]
        expected[where[index]] += 0.5 * apart
        # A code is right to half a step, of which half is applied.
        np.testing.assert_allclose(after.outer[name].reshape(-1).numpy(), expected, atol=0.1 / 4 + 1e-5)
        outside = np.ones(len(expected), bool)
        outside[where[index]] = False
        np.testing.assert_allclose(after.outer[name].reshape(-1).numpy()[outside], expected[outside], atol=1e-6)
        np.testing.assert_array_equal(after.residual[name].reshape(-1).numpy(), residuals[0])
    assert after.steps == 1


@examples(40)
@given(seed=st.integers(0, 10_000), kept=st.integers(1, 4096), scale=st.floats(0.6, 1.6))
def test_both_sides_add_the_same_to_the_bit(seed: int, kept: int, scale: float) -> None:
    one, other = (torch.randn(5000, generator=torch.Generator().manual_seed(seed + i)).numpy() for i in (0, 1))
    ours = sparsify.sparsify(np.zeros(5000, np.float32), one, decay=1.0, kept=kept)
    theirs = sparsify.sparsify(np.zeros(5000, np.float32), np.float32(scale) * other, decay=1.0, kept=kept)
    (positions, mean), (again, same) = mean_update(ours, theirs), mean_update(theirs, ours)
    order, other_order = np.argsort(positions), np.argsort(again)
    assert positions[order].tobytes() == again[other_order].tobytes()
    assert mean[order].tobytes() == same[other_order].tobytes()
    assert len(set(positions.tolist())) == len(positions)


def sparse(values: list[float]) -> SparseTensor:
    """An update of two elements, both sent."""
    book = np.array([*values, 0.0, 0.0], np.float32)
    return SparseTensor(2, 4096, np.array([0, 1], np.uint16), np.array([0, 1], np.uint8), book)


def test_an_update_far_longer_than_ours_counts_twice_ours() -> None:
    _, mean = mean_update(sparse([3.0, 4.0]), sparse([30_000.0, 40_000.0]))
    np.testing.assert_allclose(mean, [(3 + 6) / 2, (4 + 8) / 2], rtol=1e-6)


def test_an_empty_update_takes_nothing_from_ours_where_it_says_nothing() -> None:
    ours = SparseTensor(8, 512, np.array([5], np.uint16), np.array([0], np.uint8), np.array([2, 0, 0, 0], np.float32))
    theirs = SparseTensor(8, 512, np.array([1], np.uint16), np.array([0], np.uint8), np.zeros(4, np.float32))
    assert norm_of(theirs) == 0
    positions, mean = mean_update(ours, theirs)
    assert dict(zip(positions.tolist(), mean.tolist(), strict=True)) == {1: 0, 5: 2}


def test_a_lost_exchange_loses_nothing_that_was_learnt() -> None:
    start = compressed.begin(weights(1))
    before = digest(start)
    first = plus(start.outer, weights(2, 0.1))
    compressed.make_offer(start, first, 0, USUAL)  # offered, and never averaged
    assert digest(start) == before
    second = plus(first, weights(3, 0.1))
    ours = compressed.make_offer(start, second, 0, USUAL)
    for index, name in enumerate(sorted(SHAPES)):
        told = torch.zeros(start.outer[name].numel())
        told[torch.from_numpy(ours.update[index].positions)] = torch.from_numpy(ours.update[index].values)
        kept = ours.residual[name] + told.reshape(SHAPES[name])
        torch.testing.assert_close(kept, second[name] - start.outer[name], rtol=0, atol=1e-6)


def test_nothing_passed_in_is_written_to() -> None:
    one, other = compressed.begin(weights(1)), compressed.begin(weights(2))
    before = digest(one), digest(other)
    ours = compressed.make_offer(one, plus(one.outer, weights(3)), 0, USUAL)
    theirs = received(compressed.make_offer(other, plus(other.outer, weights(4)), 0, USUAL))
    residual = {name: tensor.clone() for name, tensor in ours.residual.items()}
    steps = [compressed.outer_step(one, ours, theirs, USUAL)[0] for _ in range(2)]
    assert digest(steps[0]) == digest(steps[1])
    assert (digest(one), digest(other)) == before
    assert all(torch.equal(ours.residual[name], residual[name]) for name in SHAPES)


def test_replicas_that_differ_come_together() -> None:
    base = weights(1)
    one, other = (compressed.begin(plus(base, weights(seed, 0.01))) for seed in (2, 3))
    one, other = (replace(state, spread=np.full(3, 0.014, np.float32)) for state in (one, other))
    apart = distance(one, other)
    for number in range(3 * USUAL.stride):
        one, other = exchanged(one, other, phase=number % USUAL.stride)
    assert distance(one, other) < 0.1 * apart


def test_a_distance_that_outgrew_the_range_is_found_again() -> None:
    base = weights(1)
    one, other = (compressed.begin(plus(base, weights(seed, 0.1))) for seed in (2, 3))
    one, other = (replace(state, spread=np.full(3, 1e-6, np.float32)) for state in (one, other))
    apart = distance(one, other)
    for number in range(4 * USUAL.stride):
        one, other = exchanged(one, other, phase=number % USUAL.stride)
    assert distance(one, other) < 0.2 * apart


def test_a_slice_moves_nobody_by_more_than_a_quarter_of_the_range() -> None:
    one = replace(compressed.begin(weights(1)), spread=np.full(3, 0.1, np.float32))
    far = replace(compressed.begin(weights(2, 1000.0)), spread=np.full(3, 0.1, np.float32))
    for constants in (USUAL, EVERYTHING):
        after, _ = exchanged(one, far, constants)
        for name in SHAPES:
            assert float((after.outer[name] - one.outer[name]).abs().max()) <= 0.2 * 1.001


def test_a_partner_that_counts_less_moves_us_less() -> None:
    base = weights(1)
    one = replace(compressed.begin(base), spread=np.full(3, 0.1, np.float32))
    other = replace(compressed.begin(plus(base, weights(2, 0.05))), spread=np.full(3, 0.1, np.float32))
    ours = compressed.make_offer(one, one.outer, 0, USUAL)
    theirs = received(compressed.make_offer(other, plus(other.outer, weights(3, 0.1)), 0, USUAL))
    whole, half, none = (compressed.outer_step(one, ours, theirs, USUAL, share=share)[0] for share in (1.0, 0.5, 0.0))
    assert distance(one, none) == 0
    assert distance(one, half) == pytest.approx(0.5 * distance(one, whole), rel=1e-3)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_what_was_learnt_is_sent_once_whatever_share_of_the_rest_stays_in_the_weights(kappa: float) -> None:
    constants = replace(USUAL, unsent_kept=kappa, outer_rate=1.0)  # what is sent counts once
    state, learnt = compressed.begin(weights(1)), {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    silent = received(compressed.make_offer(state, state.outer, 0, constants))
    theta: Mapping[str, Tensor] = state.outer
    for step in range(4):
        change = weights(10 + step, 0.1)
        learnt, theta = plus(learnt, change), plus(theta, change)
        ours = compressed.make_offer(state, theta, 0, constants)
        state, _ = compressed.outer_step(state, ours, silent, constants, share=0.0)
        theta = compressed.weights_of(state, constants)
    for name in SHAPES:
        everything = state.outer[name] + state.residual[name]
        torch.testing.assert_close(everything, weights(1)[name] + learnt[name], rtol=0, atol=1e-5)
        torch.testing.assert_close(theta[name], state.outer[name] + kappa * state.residual[name])


def test_an_exchange_takes_less_than_a_twentieth_of_bf16() -> None:
    big = {"matrix": torch.randn(1024, 1024), "bias": torch.randn(1024)}
    state = compressed.begin(big)
    offered = {name: tensor + 0.01 * torch.randn(tensor.shape) for name, tensor in big.items()}
    parameters = sum(tensor.numel() for tensor in big.values())
    assert 2 * parameters / len(compressed.make_offer(state, offered, 0, USUAL).blob) >= 25


def test_a_checkpoint_gives_the_state_back() -> None:
    state = compressed.begin(weights(1), steps=3)
    ours = compressed.make_offer(state, plus(state.outer, weights(2)), 0, USUAL)
    after, _ = compressed.outer_step(state, ours, received(ours), USUAL)
    found = compressed.restore({"other": torch.zeros(1), **compressed.snapshot(after)}, weights(5))
    assert found is not None
    assert digest(found) == digest(after)
    assert found.steps == 4
    assert compressed.restore({"other": torch.zeros(1)}, weights(5)) is None


def test_a_checkpoint_of_another_policy_or_a_damaged_one_is_refused() -> None:
    tensors = compressed.snapshot(compressed.begin(weights(1)))
    with pytest.raises(StorageError):
        compressed.restore(tensors, {"head": torch.zeros(3)})
    for name in tensors:
        if name != compressed.STEPS_KEY:
            with pytest.raises(StorageError):
                compressed.restore({key: value for key, value in tensors.items() if key != name}, weights(1))
