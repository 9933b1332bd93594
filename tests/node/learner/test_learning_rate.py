"""The automatic learning rate: by the model's size, and ten times higher for an adapter."""

from __future__ import annotations

import pytest
import torch

from node.configuration import LearnerSection
from node.learner.steps.optimizer import MasterAdamW, learning_rate_for


def test_small_models_take_large_steps_and_large_ones_small() -> None:
    assert learning_rate_for(100_000) == learning_rate_for(500_000) == 3e-4
    assert learning_rate_for(600_000_000) == learning_rate_for(7_000_000_000) == pytest.approx(1e-6)
    assert 2e-5 < learning_rate_for(10_000_000) < 4e-5


def test_adapter_takes_ten_times_the_rate_of_its_whole_model_within_what_was_tried() -> None:
    assert learning_rate_for(7_000_000_000, adapter=True) == pytest.approx(1e-5)
    assert learning_rate_for(10_000_000, adapter=True) == pytest.approx(10 * learning_rate_for(10_000_000))
    assert learning_rate_for(500_000, adapter=True) == 3e-4


@pytest.mark.parametrize(("adapted", "rate"), [(0, 3e-4), (7_000_000_000, 1e-5)])
def test_first_step_of_an_automatic_rate_is_that_of_what_is_trained(adapted: int, rate: float) -> None:
    weights = torch.nn.Parameter(torch.zeros(4))
    weights.grad = torch.ones(4)
    MasterAdamW({"w": weights}, LearnerSection(), adapted_parameters=adapted).step()
    assert weights.detach().abs().max().item() == pytest.approx(rate, rel=1e-3)  # Adam's first step is the rate itself


def test_rate_that_is_configured_is_taken_for_an_adapter_too() -> None:
    weights = torch.nn.Parameter(torch.zeros(4))
    weights.grad = torch.ones(4)
    MasterAdamW({"w": weights}, LearnerSection(learning_rate=0.5), adapted_parameters=7_000_000_000).step()
    assert weights.detach().abs().max().item() == pytest.approx(0.5, rel=1e-3)
