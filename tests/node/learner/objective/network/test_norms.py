"""Norms in one call: the same log-probabilities and gradients, and those that compute something else are left alone."""

from __future__ import annotations

import copy

import pytest
import torch

from node.learner.objective.network.norms import use_one_call_norms
from tests.node.learner.objective.tiny_networks import (
    VOCABULARY,
    assert_near,
    gemma2,
    llama,
    logits_and_gradients,
    qwen3,
)

NORMS = {llama: 5, qwen3: 9}  # of two layers and the last; Qwen3's heads have two more in each


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", NORMS)
def test_a_model_with_one_call_norms_has_the_same_logits_and_gradients(network, dtype) -> None:
    torch.manual_seed(0)
    plain = network().to(dtype)
    for name, parameter in plain.named_parameters():
        if "norm" in name:
            parameter.data.add_(torch.randn_like(parameter) / 4)
    ours = copy.deepcopy(plain)
    assert use_one_call_norms(ours) == NORMS[network]
    ids = torch.randint(VOCABULARY, (2, 9))
    expected, found = (logits_and_gradients(model, ids) for model in (plain, ours))
    assert_near(found, expected, 2**-20 if dtype == torch.float32 else 2**-5)


def test_norms_that_multiply_by_one_plus_their_weight_are_left_alone() -> None:
    assert use_one_call_norms(gemma2()) == 0


def test_a_copy_computes_with_its_own_weights() -> None:
    first = llama()
    use_one_call_norms(first)
    second = copy.deepcopy(first)
    for name, parameter in second.named_parameters():
        if "norm" in name:
            parameter.data.zero_()
    ids = torch.tensor([[3, 4]])
    assert not second(input_ids=ids).logits.any() and first(input_ids=ids).logits.any()


def test_norms_whose_weights_are_on_another_machine_are_left_alone() -> None:
    network = llama()
    network.model.layers[1].to("meta")
    assert use_one_call_norms(network) == NORMS[llama] - 2
