"""AdamW with float32 masters, clipping, and steps that are skipped."""

from __future__ import annotations

import math

import pytest
import torch

from node.configuration import LearnerSection
from node.learner.steps.optimizer import MasterAdamW
from protocol.errors import StorageError
from tests.node.learner.memory.failing_operation import FailsAt

SECTION = LearnerSection(learning_rate=1e-3, gradient_clip=1.0)


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(0)
    return {name: torch.nn.Parameter(torch.randn(3, 4).to(dtype)) for name in ("a", "b")}


def set_gradients(named: dict[str, torch.nn.Parameter], seed: int, scale: float = 0.01) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in named.values():
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * scale).to(parameter.dtype)


def test_float32_steps_are_those_of_torch() -> None:
    ours, theirs = parameters(), parameters()
    optimizer = MasterAdamW(ours, SECTION)
    reference = torch.optim.AdamW(theirs.values(), lr=1e-3, weight_decay=0.0)
    for seed in range(5):
        set_gradients(ours, seed)
        set_gradients(theirs, seed)
        optimizer.step()
        reference.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name])
        assert ours[name].grad is None


def test_small_steps_add_up_in_the_master_of_a_bfloat16_policy() -> None:
    named = {"w": torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))}
    optimizer = MasterAdamW(named, LearnerSection(learning_rate=1e-4))
    for _ in range(60):  # one step of 1e-4 is lost in bfloat16, whose neighbours of 1 are 0.4 % away
        named["w"].grad = torch.full((8,), 0.1, dtype=torch.bfloat16)
        optimizer.step()
    assert named["w"].dtype == torch.bfloat16
    torch.testing.assert_close(named["w"].float(), torch.full((8,), 0.994), atol=2e-3, rtol=0)


def test_gradient_is_clipped_by_its_global_norm_and_reported_before() -> None:
    clipped, plain = parameters(), parameters()
    set_gradients(clipped, 0, scale=1e4)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in clipped.values() if p.grad is not None))
    for name, parameter in plain.items():
        gradient = clipped[name].grad
        assert gradient is not None
        parameter.grad = gradient / norm
    report = MasterAdamW(clipped, SECTION).step()
    assert report.taken
    assert report.gradient_norm == pytest.approx(norm, rel=1e-5)
    MasterAdamW(plain, SECTION).step()
    for name in clipped:
        torch.testing.assert_close(clipped[name], plain[name])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_that_is_not_finite_changes_nothing_and_is_counted(value: float, dtype: torch.dtype) -> None:
    named = parameters(dtype)
    optimizer = MasterAdamW(named, SECTION)
    set_gradients(named, 0)
    optimizer.step()
    before = {n: p.detach().clone() for n, p in named.items()}
    state = {n: t.clone() for n, t in optimizer.state().items()}
    set_gradients(named, 1)
    assert named["a"].grad is not None
    named["a"].grad[0, 0] = value
    assert not optimizer.step().taken
    assert optimizer.steps_skipped == 1
    assert all(torch.equal(before[n], p) for n, p in named.items())
    assert all(torch.equal(state[n], t) for n, t in optimizer.state().items())
    set_gradients(named, 2)
    assert optimizer.step().taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restored_optimizer_continues_exactly(dtype: torch.dtype) -> None:
    original = parameters(dtype)
    first = MasterAdamW(original, SECTION)
    for seed in range(3):
        set_gradients(original, seed)
        first.step()
    copied = {n: torch.nn.Parameter(p.detach().clone()) for n, p in original.items()}
    second = MasterAdamW(copied, SECTION)
    second.restore({n: t.clone() for n, t in first.state().items()})
    for named, optimizer in ((original, first), (copied, second)):
        set_gradients(named, 9)
        optimizer.step()
    assert all(torch.equal(original[n], copied[n]) for n in original)


def test_state_of_another_shape_is_refused() -> None:
    named = parameters(torch.bfloat16)
    optimizer = MasterAdamW(named, SECTION)
    set_gradients(named, 0)
    optimizer.step()
    state = dict(optimizer.state())
    with pytest.raises(StorageError, match=r"exp_avg\.a"):
        optimizer.restore(state | {"exp_avg.a": torch.zeros(2)})
    del state["master.b"]
    with pytest.raises(StorageError, match=r"master\.b is missing"):
        optimizer.restore(state)


def test_weights_that_are_put_in_place_are_all_put_though_memory_runs_out_in_between() -> None:
    named = parameters(torch.bfloat16)
    optimizer = MasterAdamW(named, SECTION)
    wanted = {name: torch.full((3, 4), 0.3) for name in named}
    counting = FailsAt(in_place=True)
    with counting:
        optimizer.put(wanted)
    for number in range(counting.seen):
        optimizer.put({name: torch.zeros(3, 4) for name in named})
        with FailsAt(number, in_place=True):
            optimizer.put(wanted)
        assert all(torch.equal(master, wanted[name]) for name, master in optimizer.masters().items())
        assert all(torch.equal(p, wanted[name].bfloat16()) for name, p in named.items())
