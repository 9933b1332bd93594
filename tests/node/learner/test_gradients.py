"""Gradients summed over passes in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from node.configuration import LearnerSection
from node.learner.steps import gradients
from node.learner.steps.gradients import GradientAccumulator
from node.learner.steps.optimizer import MasterAdamW

PASSES = 600


def parameter(dtype: torch.dtype) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(4, dtype=dtype))


def shares() -> Tensor:
    """Returns the gradient of each pass, (PASSES, 4), each a bfloat16 number: the first is the largest by far."""
    seeded = torch.Generator().manual_seed(0)
    each = torch.rand(PASSES, 4, generator=seeded) * 0.01 + 0.001
    each[0] = 4.0
    return each.bfloat16()


def run_passes(weight: torch.nn.Parameter, of_passes: Tensor) -> None:
    for gradient in of_passes:
        (weight * gradient.to(weight.dtype)).sum().backward()


def test_small_shares_of_many_passes_are_summed_in_float32_where_bfloat16_loses_them() -> None:
    weight, plain = parameter(torch.bfloat16), parameter(torch.bfloat16)
    accumulator = GradientAccumulator({"w": weight})
    with accumulator.accumulating():
        run_passes(weight, shares())
        assert weight.grad is None
    run_passes(plain, shares())
    expected = shares().float().sum(0)
    found = accumulator.gradients()["w"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    assert plain.grad is not None
    assert float((plain.grad.float() - expected).abs().min()) > 0.2 * float(expected.min())


def test_large_gradients_are_added_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BLOCK", 3)
    weight = torch.nn.Parameter(torch.zeros(4, 2, dtype=torch.bfloat16))
    accumulator = GradientAccumulator({"w": weight})
    with accumulator.accumulating():
        for factor in (1.0, 2.0):
            (weight * torch.arange(8).reshape(4, 2).bfloat16() * factor).sum().backward()
    torch.testing.assert_close(accumulator.gradients()["w"], 3.0 * torch.arange(8.0).reshape(4, 2))


def test_float32_parameters_keep_their_gradient_where_autograd_puts_it() -> None:
    weight = parameter(torch.float32)
    accumulator = GradientAccumulator({"w": weight})
    with accumulator.accumulating():
        run_passes(weight, torch.ones(3, 4))
    assert accumulator.gradients()["w"] is weight.grad
    torch.testing.assert_close(accumulator.gradients()["w"], torch.full((4,), 3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_interrupted_pass_leaves_nothing_of_the_whole_batch(dtype: torch.dtype) -> None:
    weight = parameter(dtype)
    accumulator = GradientAccumulator({"w": weight})
    with pytest.raises(MemoryError), accumulator.accumulating():
        run_passes(weight, torch.ones(2, 4))
        raise MemoryError
    assert accumulator.gradients() == {} and weight.grad is None
    with accumulator.accumulating():
        run_passes(weight, torch.ones(1, 4))
    torch.testing.assert_close(accumulator.gradients()["w"], torch.ones(4))


def test_outside_of_the_context_gradients_stay_with_the_parameters() -> None:
    weight = parameter(torch.bfloat16)
    accumulator = GradientAccumulator({"w": weight})
    with accumulator.accumulating():
        run_passes(weight, torch.ones(1, 4))
    run_passes(weight, torch.ones(1, 4))
    assert weight.grad is not None
    torch.testing.assert_close(accumulator.gradients()["w"], torch.full((4,), 2.0))  # and it is taken when asked for
    assert weight.grad is None


def test_optimizer_steps_on_the_sum_and_frees_it() -> None:
    weight, reference = parameter(torch.bfloat16), parameter(torch.float32)
    optimizer = MasterAdamW({"w": weight}, LearnerSection(learning_rate=1e-2))
    with optimizer.accumulated.accumulating():
        run_passes(weight, shares())
    run_passes(reference, shares())
    assert reference.grad is not None
    assert optimizer.step().gradient_norm == pytest.approx(float(reference.grad.norm()), rel=1e-6)
    assert optimizer.accumulated.gradients() == {}
