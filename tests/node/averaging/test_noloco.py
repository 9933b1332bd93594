"""NoLoCo's outer step follows the formula in both its forms, and refuses weights that would spoil it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from node.averaging import noloco
from node.averaging.noloco import NolocoConstants, OuterState
from protocol.errors import StorageError

SHAPES = {"head": (3, 5), "tail": (7,), "scale": ()}
RELEASED = NolocoConstants()


def weights(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def state(seed: int, steps: int = 3) -> OuterState:
    return OuterState(weights(seed), weights(seed + 1000, scale=0.1), steps)


def digest(tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for _, t in sorted(tensors.items()))).hexdigest()


def test_the_step_is_the_papers_formula_by_hand() -> None:
    # φ_i = 1, φ_j = 3, θ_i = 2, θ_j = 6, m = 0.1:  m ← .5·.1 + .7·((1 + 3)/2) + .7·(2 − 1) = 2.15, φ ← 3.15
    one = OuterState({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.1])}, 4)
    after = noloco.outer_step(one, [{"w": torch.tensor([2.0])}, {"w": torch.tensor([6.0])}], RELEASED)
    assert after.momentum["w"].item() == pytest.approx(2.15)
    assert after.outer["w"].item() == pytest.approx(3.15)
    assert after.steps == 5


@pytest.mark.parametrize("values", [1, noloco.AT_ONCE, noloco.AT_ONCE + 1, 3 * noloco.AT_ONCE + 7])
def test_a_long_tensor_is_stepped_in_parts_with_the_bits_of_one_step(values: int) -> None:
    chance = torch.Generator().manual_seed(values)
    phi, m, own = (torch.randn(values, generator=chance) for _ in range(3))
    theirs = torch.randn(values, generator=chance).to(torch.bfloat16)
    state = OuterState({"w": phi}, {"w": m}, 4)
    found = noloco.outer_step(state, [{"w": own}, {"w": theirs}], NolocoConstants(), shares=(1.0, 0.3))
    pull = own.add(theirs, alpha=0.3).div_(1.3).sub_(phi).mul_(0.7).add_(m, alpha=0.5)
    assert torch.equal(found.momentum["w"], pull)
    assert torch.equal(found.outer["w"], phi + pull)
    assert found.steps == 5


def test_alone_the_step_is_plain_outer_momentum() -> None:
    own, learned = state(1), weights(2)
    after = noloco.outer_step(own, [learned], RELEASED)
    for name in SHAPES:
        expected = 0.5 * own.momentum[name] + 0.7 * (learned[name] - own.outer[name])
        torch.testing.assert_close(after.momentum[name], expected)


def test_like_replicas_stay_bit_equal_whichever_of_the_two_they_are() -> None:
    here, there, own = weights(5), weights(6), state(1)
    one = noloco.outer_step(own, [here, there], RELEASED)
    other = noloco.outer_step(own, [there, here], RELEASED)
    assert digest(dict(one.outer)) == digest(dict(other.outer))


def test_eight_replicas_that_average_in_random_pairs_draw_together() -> None:
    generator = torch.Generator().manual_seed(3)
    states = [noloco.begin(weights(j)) for j in range(8)]

    def spread() -> float:
        outer = torch.stack([s.outer["head"] for s in states])
        return float((outer - outer.mean(0)).norm())

    began = spread()
    mean = torch.stack([s.outer["head"] for s in states]).mean(0)
    for _ in range(40):
        order = torch.randperm(8, generator=generator).tolist()
        for i, j in zip(order[::2], order[1::2], strict=True):
            group = [states[i].outer, states[j].outer]  # no learning between: θ = φ
            states[i], states[j] = (noloco.outer_step(states[k], group, RELEASED) for k in (i, j))
    assert spread() < 1e-3 * began
    torch.testing.assert_close(torch.stack([s.outer["head"] for s in states]).mean(0), mean, rtol=0, atol=1e-4)


def test_a_commit_on_one_side_alone_leaves_a_replica_that_draws_together_as_well() -> None:
    one, other = noloco.begin(weights(1)), noloco.begin(weights(2))
    before = digest(dict(other.outer))
    one = noloco.outer_step(one, [one.outer, other.outer], RELEASED)  # the other one never learnt of it
    assert digest(dict(other.outer)) == before
    for _ in range(40):
        group = [one.outer, other.outer]
        one, other = (noloco.outer_step(s, group, RELEASED) for s in (one, other))
    torch.testing.assert_close(one.outer, other.outer, rtol=0, atol=1e-4)


def test_a_step_writes_to_nothing_that_it_was_given_and_takes_rounded_weights_as_well() -> None:
    own, here = state(1), weights(2)
    there = {name: tensor.to(torch.bfloat16) for name, tensor in weights(3).items()}
    before = [digest(dict(t)) for t in (own.outer, own.momentum, here, {n: t.float() for n, t in there.items()})]
    after = noloco.outer_step(own, [here, there], RELEASED)
    assert [
        digest(dict(t)) for t in (own.outer, own.momentum, here, {n: t.float() for n, t in there.items()})
    ] == before
    assert {t.dtype for t in after.outer.values()} == {torch.float32}


def test_beginning_copies_the_weights_so_that_learning_on_does_not_move_them() -> None:
    live = {"w": torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))}
    began = noloco.begin(live)
    with torch.no_grad():
        live["w"].add_(1.0)
    assert began.outer["w"].tolist() == [1.0, 1.0, 1.0]
    assert began.outer["w"].dtype is torch.float32
    assert not began.outer["w"].requires_grad


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda w: w.pop("tail"), "on one side only"),
        (lambda w: w.update(extra=torch.zeros(1)), "on one side only"),
        (lambda w: w.update(tail=torch.zeros(8)), "shape"),
        (lambda w: w.update(tail=torch.zeros(7, dtype=torch.int64)), "torch.int64"),
        (lambda w: w["head"].view(-1)[7].fill_(float("nan")), "nan"),
        (lambda w: w["head"].view(-1)[0].fill_(float("inf")), "inf"),
        (lambda w: w["head"].view(-1)[14].fill_(float("-inf")), "inf"),
        (lambda w: w["scale"].fill_(70_000.0), "at most ±65536"),
        (lambda w: w["scale"].fill_(-70_000.0), "at most ±65536"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spoilt_weights_of_a_partner_are_refused_for_what_is_wrong(spoil, reason, dtype) -> None:
    theirs = {name: tensor.to(dtype) for name, tensor in weights(2).items()}
    assert noloco.unfit_weights(weights(1), theirs) is None
    spoil(theirs)
    refusal = noloco.unfit_weights(weights(1), theirs)
    assert refusal is not None
    assert reason in refusal


def test_a_tensor_without_elements_is_fit() -> None:
    assert noloco.unfit_weights({"none": torch.zeros(0, 4)}, {"none": torch.zeros(0, 4)}) is None


def test_the_state_survives_a_checkpoint_bit_by_bit(tmp_path: Path) -> None:
    own = state(1, steps=17)
    file = tmp_path / "tensors.safetensors"
    save_file(noloco.snapshot(own) | {"policy/other": torch.ones(2)}, file)
    back = noloco.restore(load_file(file), weights(9))
    assert back is not None
    assert back.steps == 17
    assert digest(dict(back.outer)) == digest(dict(own.outer))
    assert digest(dict(back.momentum)) == digest(dict(own.momentum))


def test_a_checkpoint_from_before_averaging_restores_nothing() -> None:
    assert noloco.restore({"policy/other": torch.ones(2)}, weights(1)) is None


@pytest.mark.parametrize("part", ["averaging/outer/tail", "averaging/momentum/tail"])
def test_a_checkpoint_that_misses_a_part_or_fits_another_policy_is_refused_with_the_remedy(part: str) -> None:
    tensors = noloco.snapshot(state(1))
    with pytest.raises(StorageError, match=r"averaging/"):
        noloco.restore({name: t for name, t in tensors.items() if name != part}, weights(1))
    with pytest.raises(StorageError, match=r"averaging/"):
        noloco.restore(tensors | {part: torch.zeros(9)}, weights(1))


def test_a_step_applied_where_nothing_was_learnt_meanwhile_is_the_outer_step_bit_by_bit() -> None:
    offered = weights(2)
    after = noloco.outer_step(state(1), [offered, weights(3)], RELEASED)
    now = {name: tensor.clone() for name, tensor in offered.items()}
    assert digest(noloco.overlapped(now, offered, after.outer)) == digest(dict(after.outer))


@given(seed=st.integers(0, 10_000))
def test_what_was_learnt_while_a_step_was_under_way_is_kept_bit_by_bit(seed: int) -> None:
    def on_a_grid(number: int) -> dict[str, Tensor]:  # sums and differences of these are exact in float32
        return {name: (256 * tensor).round() / 1024 + 0.0 for name, tensor in weights(number).items()}

    offered, learnt, outer = on_a_grid(seed), on_a_grid(seed + 1), on_a_grid(seed + 2)
    now = {name: tensor + learnt[name] for name, tensor in offered.items()}
    moved = noloco.overlapped(now, offered, outer)
    assert digest({name: tensor - outer[name] for name, tensor in moved.items()}) == digest(learnt)


def test_a_member_that_counts_in_full_changes_no_bit_and_one_that_counts_nothing_leaves_the_step_alone() -> None:
    own, here, there = state(1), weights(2), weights(3)
    plain = noloco.outer_step(own, [here, there], RELEASED)
    full = noloco.outer_step(own, [here, there], RELEASED, shares=(1.0, 1.0))
    assert digest(dict(full.outer)) == digest(dict(plain.outer))
    assert digest(dict(full.momentum)) == digest(dict(plain.momentum))
    alone = noloco.outer_step(own, [here], RELEASED)
    nothing = noloco.outer_step(own, [here, there], RELEASED, shares=(1.0, 0.0))
    assert digest(dict(nothing.outer)) == digest(dict(alone.outer))


def test_a_member_that_counts_less_moves_the_mean_by_its_share_by_hand() -> None:
    # φ = 0, m = 0, θ_i = 1, θ_j = 6, w = 1/4: the mean is (1 + 6/4) / (5/4) = 2, and φ ← 0.7 · 2
    zero = noloco.begin({"w": torch.zeros(1)})
    group = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([6.0])}]
    assert noloco.outer_step(zero, group, RELEASED, shares=(1.0, 0.25)).outer["w"].item() == pytest.approx(1.4)
    with pytest.raises(ValueError, match=r"2.*1"):
        noloco.outer_step(zero, group, RELEASED, shares=(1.0,))


@pytest.mark.parametrize(("periods", "undoes"), [(1, False), (2, False), (3, True), (20, True)])
def test_a_step_after_a_longer_stretch_undoes_some_of_what_was_learnt_only_beyond_the_stated_bound(
    periods: int, undoes: bool
) -> None:
    now = torch.zeros(1)
    steady = noloco.begin({"w": now})
    for _ in range(60):  # of a replica that advances by 1 a period, all of the family alike
        now = now + 1
        steady = noloco.outer_step(steady, [{"w": now}, {"w": now}], RELEASED)
        now = steady.outer["w"].clone()
    now = now + periods
    after = noloco.outer_step(steady, [{"w": now}, {"w": now}], RELEASED)
    assert bool(after.outer["w"] < now) is undoes is (periods > RELEASED.stretch)


def test_without_momentum_no_stretch_is_short_enough_and_at_full_rate_none_too_long() -> None:
    assert replace(RELEASED, momentum=0.0).stretch == 0.0
    assert replace(RELEASED, outer_rate=1.0).stretch == float("inf")
