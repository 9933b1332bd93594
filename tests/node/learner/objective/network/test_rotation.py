"""The rotation in one call: the same logits and gradients, and functions that compute something else are left alone."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from node.kernels import dispatch
from node.learner.objective.network import rotation
from node.learner.objective.network.rotation import use_one_call_rotation
from tests.node.learner.objective.tiny_networks import VOCABULARY, assert_near, llama, logits_and_gradients, qwen3

MODULES = {llama: modeling_llama, qwen3: modeling_qwen3}


@pytest.fixture(autouse=True)
def by_triton(monkeypatch):
    monkeypatch.setattr(dispatch, "TRITON_DEVICES", {"cpu"})
    for module in MODULES.values():
        monkeypatch.setattr(module, rotation.NAME, getattr(module, rotation.NAME))  # put back afterwards


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", MODULES)
def test_a_model_with_one_call_rotation_has_the_same_logits_and_gradients(network, dtype) -> None:
    torch.manual_seed(0)
    model = network().to(dtype)
    ids = torch.randint(VOCABULARY, (2, 9))
    expected = logits_and_gradients(model, ids)
    assert use_one_call_rotation(model, model.device)
    assert use_one_call_rotation(model, model.device), "a second time changes nothing"
    found = logits_and_gradients(model, ids)
    assert_near(found, expected, 2**-20 if dtype == torch.float32 else 2**-5)


def test_gradients_that_do_not_lie_token_by_token_are_rotated_back() -> None:
    from node.kernels.training.triton_rotation import RotateBoth

    torch.manual_seed(0)
    queries, keys = (torch.randn(2, heads, 5, 24, dtype=torch.float64).float() for heads in (6, 3))
    angles = torch.randn(1, 5, 12)
    cos, sin = (torch.cat((wave, wave), -1) for wave in (angles.cos(), angles.sin()))
    leaves = [each.requires_grad_() for each in (queries, keys)]
    rotated = RotateBoth.apply(*leaves, cos, sin)
    back = torch.autograd.grad(
        rotated, leaves, [each.detach().transpose(2, 3).contiguous().transpose(2, 3) for each in rotated]
    )
    # What turns one way and then the other is where it was.
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(back, leaves, strict=True))


def test_a_function_that_rotates_neighbouring_coordinates_is_left_alone(monkeypatch) -> None:
    def neighbours(q, k, cos, sin, unsqueeze_dim=1):
        del unsqueeze_dim
        return q * cos[:, None], k * sin[:, None]

    model = llama()
    monkeypatch.setattr(sys.modules[type(model).__module__], rotation.NAME, neighbours)
    assert not use_one_call_rotation(model, model.device)
    assert getattr(sys.modules[type(model).__module__], rotation.NAME) is neighbours


def test_tensors_that_are_not_for_triton_go_to_the_models_own_function(monkeypatch) -> None:
    model = llama()
    assert use_one_call_rotation(model, model.device)
    monkeypatch.setattr(dispatch, "TRITON_DEVICES", set())
    monkeypatch.setattr(rotation, "_in_one_call", None)
    model(input_ids=torch.tensor([[3, 4]]))
