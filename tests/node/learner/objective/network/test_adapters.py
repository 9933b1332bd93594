"""An adapter's layer in few calls: as near to exact numbers as PEFT's, and what is another formula is left to PEFT."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from bitsandbytes.nn.modules import Linear4bit, Params4bit
from torch import Tensor, nn

from node.kernels import dispatch
from node.learner.objective import forward
from node.learner.objective.forward import WHOLE, Network, PassSettings, completion_logps, plan_micro_batches
from node.learner.objective.network import adapters, attention
from node.learner.objective.network.adapters import use_one_call_adapters
from node.policy.adapter import is_adapted_layer, with_adapter
from node.policy.four_bit import keep_differentiable
from scripts.bench.gpu.adapter import exact_results
from tests.lighter_interpreter import lighten_interpreter
from tests.node.learner.objective.tiny_networks import gradients, groups, qwen2, qwen3

CPU = torch.device("cpu")
LAYERS = 2 * 7


@pytest.fixture(autouse=True)
def by_triton(monkeypatch):
    monkeypatch.setattr(dispatch, "TRITON_DEVICES", {"cpu"})
    lighten_interpreter()


def layer_of(width: int, height: int, rank: int, *, four_bit: bool = False) -> Any:
    """One adapted matrix; neither of its factors is 0."""
    from peft import LoraConfig
    from peft.tuners.lora import Linear
    from peft.tuners.lora.bnb import Linear4bit as Adapted4bit

    torch.manual_seed(0)
    base: Any = nn.Linear(width, height).bfloat16()
    if four_bit:
        weight, bias = base.weight.detach(), base.bias
        base = Linear4bit(width, height, compute_dtype=torch.bfloat16, quant_type="nf4", device="meta")
        base.weight = Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4")
        base.bias = bias
        base = base.to(CPU)
    base.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0)
    layer: Any = (Adapted4bit if four_bit else Linear)(base, "default", config, r=rank, lora_alpha=2 * rank)
    for number, factors in enumerate((layer.lora_A, layer.lora_B)):
        weight = factors["default"].weight
        weight.data = torch.randn(weight.shape) / weight.shape[1] ** 0.5 / (1 + number)
    keep_differentiable(layer)
    return layer.eval()


def found(layer: Any, x: Tensor, slope: Tensor) -> list[Tensor]:
    """y and the gradients of x, A and B."""
    leaves = [x.clone().requires_grad_(), layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    y = layer(leaves[0])
    return [y.detach(), *torch.autograd.grad(y, leaves, slope)]


@pytest.mark.parametrize("four_bit", [False, True])
@pytest.mark.parametrize("rank", [4, 16])
@pytest.mark.parametrize(("width", "height"), [(64, 512), (320, 128), (512, 64)])
def test_results_and_gradients_are_as_near_to_float64_as_pefts(width, height, rank, four_bit) -> None:
    layer = layer_of(width, height, rank, four_bit=four_bit)
    x, slope = (torch.randn(3, 70, size).bfloat16() for size in (width, height))
    leaves = [x, layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    wanted, peft = exact_results(layer, leaves, slope), found(layer, x, slope)
    assert use_one_call_adapters(layer, CPU) == 1
    for name, best, theirs, ours in zip(["y", "x", "A", "B"], wanted, peft, found(layer, x, slope), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.is_contiguous()
        off, bound = ((each.double() - best).norm() for each in (ours, theirs))
        assert off <= 1.25 * bound, name


@pytest.mark.parametrize(
    ("x_learns", "down_learns", "up_learns"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 1), (1, 0, 0)]
)
def test_only_what_learns_gets_a_gradient(x_learns, down_learns, up_learns) -> None:
    layer = layer_of(16, 24, 2)
    x, slope = torch.randn(5, 16).bfloat16(), torch.randn(5, 24).bfloat16()
    use_one_call_adapters(layer, CPU)
    wanted = found(layer, x, slope)[1:]
    leaves = [x, layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    for leaf, learns in zip(leaves, (x_learns, down_learns, up_learns), strict=True):
        leaf.requires_grad_(bool(learns))
    layer(x).backward(slope)
    for leaf, gradient in zip(leaves, wanted, strict=True):
        assert torch.equal(leaf.grad, gradient) if leaf.requires_grad else leaf.grad is None


def test_parts_of_a_float32_matrix_make_up_all_of_it() -> None:
    from node.kernels.training.triton_adapter import add_product, split_factors

    torch.manual_seed(0)
    down, up = torch.randn(3, 700) * 10.0 ** torch.arange(-6, 1, 3)[:, None], torch.randn(900, 3)
    down_parts, up_parts = split_factors(down, up)
    assert down_parts.dtype == up_parts.dtype == torch.bfloat16
    assert torch.equal(down_parts.float().view(3, 3, 700).sum(0), down)
    assert torch.equal(up_parts.float().view(900, 3, 3).sum(1), up)
    products = torch.randn(100, 9)
    parts = add_product(None, products, 2.0, down_parts.view(3, 3, 700)).float().view(100, 3, 3)
    total = products.view(100, 3, 3)
    assert torch.equal(parts.sum(1), (total[:, 0] + total[:, 1] + total[:, 2]) * 2)


@pytest.mark.parametrize("rank", [2, 80])
def test_a_thin_product_is_added_in_float32_and_rounded_once(rank: int) -> None:
    from node.kernels.training.triton_adapter import add_product, split_factors

    torch.manual_seed(0)
    factor, thin, into = torch.randn(rank, 150), torch.randn(70, rank), torch.randn(70, 150).bfloat16()
    parts, _ = split_factors(factor, factor.T)
    products = torch.cat([thin / 2, thin / 4, thin / 4], 1)
    wanted, found = into.double() + 2 * thin.double() @ factor.double(), into.clone()
    add_product(found, products, 2.0, parts.view(3, rank, 150))
    once = (wanted.bfloat16().double() - wanted).norm()
    assert once < (found.double() - wanted).norm() <= 1.001 * once


def adapted(network: Any, rank: int = 3, **extra: Any) -> Any:
    torch.manual_seed(0)
    model: Any = with_adapter(network(**extra).bfloat16(), rank).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape) / 8
    return model


def learnt(model: Any, settings: PassSettings) -> list[Tensor]:
    """Log-probabilities of completions, and the gradients of all factors."""
    network = Network.of(model)
    (micro_batch,) = plan_micro_batches(groups(), batch_tokens=4096)
    logps, entropies = completion_logps(network, micro_batch, settings)
    (logps.sum() + entropies.sum()).backward()
    return [logps.detach(), *(gradient.clone() for gradient in gradients(model).values())]


@pytest.mark.parametrize(
    ("network", "settings"), [(qwen2, WHOLE), (qwen3, PassSettings(4096, recompute=True, chunk_tokens=40))]
)
def test_a_model_learns_as_near_to_float64_as_with_pefts_layers(network, settings, monkeypatch) -> None:
    model, exact_model = adapted(network), adapted(network).double()
    wanted = learnt(exact_model, settings)
    monkeypatch.setattr(attention, "has_products", lambda device: False)  # the interpreter takes a minute for those
    with monkeypatch.context() as without:
        without.setattr(forward, "use_one_call_adapters", lambda model, device: 0)
        peft = learnt(model, settings)
    ours = learnt(model, settings)
    assert use_one_call_adapters(model, CPU) == LAYERS
    assert len(ours) == 1 + 2 * LAYERS
    off, bound = (
        sum(float((one.double() - best).norm() / best.norm()) for one, best in zip(each, wanted, strict=True))
        for each in (ours, peft)
    )
    assert 0 < off <= 1.25 * bound


def called(layer: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a pass through the layer goes in few calls, and gives numbers."""
    calls = list[Any]()
    apply: Any = adapters._Adapted.apply

    def noting(*arguments: Any) -> Tensor:
        calls.append(arguments)
        y: Tensor = apply(*arguments)
        return y

    with monkeypatch.context() as counting:
        counting.setattr(adapters._Adapted, "apply", noting)
        assert layer(torch.randn(5, 16).bfloat16()).isfinite().all()
    return bool(calls)


def two_adapters(layer: Any) -> None:
    from peft import LoraConfig

    layer.update_layer("other", 2, 4, config=LoraConfig(r=2))
    layer.set_adapter(["default", "other"])


def dropout(layer: Any) -> None:
    layer.lora_dropout["default"] = nn.Dropout(0.5)
    layer.train()


CHANGES = {
    "switched off": lambda layer: layer.enable_adapters(False),
    "merged": lambda layer: layer.merge(),
    "several adapters": two_adapters,
    "dropout": dropout,
    "factors in bfloat16": lambda layer: [each.bfloat16() for each in (layer.lora_A, layer.lora_B)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_computes_another_formula_is_pefts_before_and_after_it_is_asked(change, monkeypatch) -> None:
    late, early = layer_of(16, 24, 2), layer_of(16, 24, 2)
    assert use_one_call_adapters(late, CPU) == 1 and called(late, monkeypatch)
    for layer in (late, early):
        CHANGES[change](layer)
    assert use_one_call_adapters(early, CPU) == 0
    assert not called(late, monkeypatch) and not called(early, monkeypatch)


def test_decomposed_factors_trained_bases_and_float32_are_left_alone() -> None:
    from peft import LoraConfig
    from peft.tuners.lora import Linear

    config = LoraConfig(r=2, use_dora=True)
    decomposed: Any = Linear(nn.Linear(16, 24).bfloat16().requires_grad_(False), "default", config, r=2, lora_alpha=4)
    trained, exact_base = layer_of(16, 24, 2), layer_of(16, 24, 2)
    trained.base_layer.weight.requires_grad_(True)
    exact_base.base_layer.float()
    assert [use_one_call_adapters(each, CPU) for each in (decomposed, trained, exact_base)] == [0, 0, 0]


def test_where_triton_does_not_compile_layers_are_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "TRITON_DEVICES", set())
    assert use_one_call_adapters(layer_of(16, 24, 2), CPU) == 0


def test_kernels_that_lose_the_smaller_parts_are_not_used(monkeypatch) -> None:
    from node.kernels.training import triton_adapter

    whole = triton_adapter.add_product

    def cut(into: Tensor, products: Tensor, scale: float, factor: Tensor) -> Tensor:
        parts = whole(into, products, scale, factor)
        parts[:, parts.shape[1] // 3 :] = 0
        return parts

    monkeypatch.setattr(triton_adapter, "add_product", cut)
    layer = layer_of(64, 48, 4)
    assert use_one_call_adapters(layer, CPU) == 0 and "forward" not in vars(layer)


def test_a_copy_computes_with_its_own_factors_and_factors_put_in_place_count_at_once() -> None:
    """As of a reference policy, whose factors take the place of those that are trained."""
    layer = layer_of(16, 24, 2)
    use_one_call_adapters(layer, CPU)
    second = copy.deepcopy(layer)
    x = torch.randn(3, 16).bfloat16()
    second.lora_B["default"].weight.data = torch.zeros(24, 2)
    assert torch.equal(second(x), layer.base_layer(x)) and not torch.equal(layer(x), second(x))


def test_layers_on_another_machine_are_left_alone() -> None:
    model = adapted(qwen3)
    model.base_model.model.model.layers[1].to("meta")
    assert use_one_call_adapters(model, CPU) == LAYERS / 2
    assert all(
        "forward" not in vars(each)
        for each in model.modules()
        if is_adapted_layer(each) and each.base_layer.weight.is_meta
    )
