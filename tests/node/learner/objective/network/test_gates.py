"""MLPs whose gate is one call: the same logits and gradients, less is kept, and others are left alone."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextMLP

from node.learner.objective.forward import WHOLE, PassSettings
from node.learner.objective.network import gates
from node.learner.objective.network.gates import use_one_call_gates
from tests.node.learner.objective.network.test_recomputation import adapted, learnt
from tests.node.learner.objective.tiny_networks import (
    VOCABULARY,
    assert_near,
    built,
    gemma2,
    gpt_neox,
    llama,
    logits_and_gradients,
    qwen2,
    qwen3,
)
from tests.node.policy.test_four_bit import load

CPU = torch.device("cpu")
UNIT = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}  # of one rounding, relative


@pytest.fixture(autouse=True)
def by_triton(monkeypatch):
    monkeypatch.setattr(gates, "is_for_triton", lambda device: True)  # of nothing else
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # which Triton's interpreter requires
    yield
    torch.set_num_threads(threads)


def assert_same_logits_and_gradients(plain, ours, error: float) -> None:
    ids = torch.randint(VOCABULARY, (2, 9))
    expected, found = (logits_and_gradients(model, ids) for model in (plain, ours))
    assert len(expected) > 4
    assert_near(found, expected, error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", [llama, qwen2, qwen3])
def test_a_model_with_one_call_gates_has_the_same_logits_and_gradients(network, dtype) -> None:
    torch.manual_seed(0)
    plain = network().to(dtype)
    ours = copy.deepcopy(plain)
    assert use_one_call_gates(ours, CPU) == 2
    assert use_one_call_gates(ours, CPU) == 2, "a second time changes nothing"
    assert_same_logits_and_gradients(plain, ours, 2**-20 if dtype == torch.float32 else 2**-5)


def test_adapters_beside_a_base_in_four_bits_have_the_same_gradients() -> None:
    plain: Any = load().model
    ours: Any = load().model
    torch.manual_seed(0)
    for name, parameter in plain.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)  # B is zero at first: nothing would flow back to A
            ours.get_parameter(name).data.copy_(parameter)
    assert use_one_call_gates(ours.get_base_model(), CPU) == ours.config.num_hidden_layers
    assert_same_logits_and_gradients(plain, ours, 2**-16)


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_pieces_of_recomputed_layers_take_one_call_too_and_have_the_same_gradients(lora, monkeypatch) -> None:
    monkeypatch.setattr(gates, "is_for_triton", lambda device: False)
    model = built("qwen3", torch.float32)
    model = adapted(model) if lora else model
    expected_logps, expected = learnt(model, WHOLE)
    monkeypatch.setattr(gates, "is_for_triton", lambda device: True)
    gated = Mock(side_effect=gates._gated)
    monkeypatch.setattr(gates, "_gated", gated)
    logps, found = learnt(model, PassSettings(80, recompute=True, chunk_tokens=3))
    tokens = [call.args[0].numel() // 48 for call in gated.call_args_list[1:]]  # after the trial
    assert len(tokens) > 100 and max(tokens) == 3
    torch.testing.assert_close(logps, expected_logps, atol=1e-4, rtol=1e-4)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-4 * (1e-3 + gradient.norm()), name


def test_of_an_mlp_gate_up_and_the_product_are_kept() -> None:
    model = llama()
    mlp, x, kept = model.model.layers[0].mlp, torch.randn(5, 32), []
    for replaced in (False, True):
        if replaced:
            assert use_one_call_gates(model, CPU) == 2
        sizes = dict[int, int]()  # by address: what is kept is not freed, so that none is used twice

        def pack(tensor, sizes=sizes):
            if tensor.numel() == 5 * 48:
                sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = mlp(x)
        kept.append(len(sizes))
        result.sum().backward()
    assert kept == [4, 3]


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("shape", [(1,), (3, 700), (2, 1024)])
def test_values_and_gradients_are_those_of_float64_rounded_once(shape, dtype) -> None:
    torch.manual_seed(0)
    operands = [3 * torch.randn(shape).to(dtype) for _ in range(3)]
    slope = operands.pop()
    found, exact = list[Tensor](), list[Tensor]()
    for results, kind in ((found, dtype), (exact, torch.float64)):
        leaves = [each.to(kind).requires_grad_() for each in operands]
        result = gates._gated(*leaves) if kind == dtype else silu(leaves[0]) * leaves[1]
        results += [result, *torch.autograd.grad(result, leaves, slope.to(kind))]
    for ours, wanted in zip(found, exact, strict=True):
        assert ours.dtype == dtype
        # 1 + g (1 − σ) cancels near its zero, which leaves float32's own roundings.
        allowed = (UNIT[dtype] + 2**-20) * wanted.abs() + 2**-19 + torch.finfo(dtype).tiny
        assert ((ours.double() - wanted).abs() <= allowed).all()


def test_operands_and_gradients_that_are_not_contiguous_give_the_same() -> None:
    torch.manual_seed(0)
    operands = [torch.randn(40, 70) for _ in range(3)]
    found = []
    for turned in (False, True):
        laid = [each.t().contiguous().t() if turned else each for each in operands]
        leaves = [each.detach().requires_grad_() for each in laid[:2]]
        result = gates._gated(*leaves)
        found.append([result, *torch.autograd.grad(result, leaves, laid[2])])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter, by numpy: 1 / (1 + ∞) is meant
def test_gates_far_from_zero_are_shut_or_open_and_their_gradients_finite() -> None:
    g = torch.tensor([-3e38, -200.0, -0.0, 0.0, 200.0, 3e38], requires_grad=True)
    u = torch.full_like(g, 0.5, requires_grad=True)
    result = gates._gated(g, u)
    of_g, of_u = torch.autograd.grad(result, (g, u), torch.ones_like(g))
    assert torch.equal(result.detach(), torch.tensor([0.0, 0, 0, 0, 100, 1.5e38]))
    assert torch.equal(of_g, torch.tensor([0.0, 0, 0.25, 0.25, 0.5, 0.5]))
    assert torch.equal(of_u, torch.tensor([0.0, 0, 0, 0, 200, 3e38]))


def test_a_copy_computes_with_its_own_weights() -> None:
    first = llama()
    use_one_call_gates(first, CPU)
    second = copy.deepcopy(first)
    for layer in second.model.layers:
        layer.mlp.down_proj.weight.data.zero_()
    mlps = [model.model.layers[0].mlp for model in (first, second)]
    x = torch.randn(2, 32)
    assert mlps[0](x).any() and not mlps[1](x).any()


def test_mlps_with_another_activation_or_more_parts_or_without_a_gate_are_left_alone(caplog) -> None:
    assert use_one_call_gates(gemma2(), CPU) == 0
    sparse = Gemma3nTextConfig(
        hidden_size=32, intermediate_size=[48], num_hidden_layers=1, hidden_activation="silu",
        activation_sparsity_pattern=[0.9],
    )  # fmt: skip
    assert use_one_call_gates(Gemma3nTextMLP(sparse), CPU) == 0  # type: ignore[arg-type]
    assert use_one_call_gates(gpt_neox(), CPU) == 0
    assert not caplog.text


def test_weights_of_some_layers_are_on_another_machine_and_those_here_take_one_call() -> None:
    model = llama()
    mlp, x = model.model.layers[0].mlp, torch.randn(2, 32)
    plain = mlp(x)
    model.model.layers[1].to("meta")
    assert use_one_call_gates(model, CPU) == 2
    assert torch.allclose(mlp(x), plain, atol=1e-6) and "forward" in vars(mlp)


def test_an_mlp_whose_forward_somebody_else_has_replaced_is_left_alone() -> None:
    model = llama()
    other = model.model.layers[0].mlp.forward = Mock()
    assert use_one_call_gates(model, CPU) == 1
    assert model.model.layers[0].mlp.forward is other


def test_kernels_that_compute_something_else_are_not_used_and_it_is_said(monkeypatch, caplog) -> None:
    monkeypatch.setattr(gates, "_gated", lambda g, u: silu(g) * u * 1.1)
    model = llama()
    assert use_one_call_gates(model, CPU) == 0
    assert "forward" not in vars(model.model.layers[0].mlp)
    assert "differs" in caplog.text


def test_tensors_that_are_not_for_triton_go_through_the_modules_own_forward(monkeypatch) -> None:
    model = llama()
    assert use_one_call_gates(model, CPU) == 2
    monkeypatch.setattr(gates, "is_for_triton", lambda device: False)
    monkeypatch.setattr(gates, "_gated", None)
    model(input_ids=torch.tensor([[3, 4]]))
