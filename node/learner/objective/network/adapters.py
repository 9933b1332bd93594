"""An adapter's layer in few calls and without copies in float32, where Triton compiles.

    y = x Wᵀ + b + h Bᵀ        h = s x Aᵀ          A (r, in), B (out, r) in float32; x, W and y in bfloat16
    dx = g W + d A             d = s g B           g: the gradient of y
    dA = dᵀ x                  dB = gᵀ h

PEFT converts x and g to float32 for the thin products, keeps both for the backward pass, and multiplies in float32.
Here tensor cores multiply parts of bfloat16 which together are A, B, h and d (``triton_adapter``). So h, d, dA and dB
are float32 sums of exact products, as PEFT's are; and what is added to dx is rounded once, where PEFT rounds twice.
Kept are x, and parts of h, A and B.

As with norms and rotations, PEFT's own path stays for what this does not compute: several adapters at a time, one that
is merged, switched off, of another kind or with dropout, other formats, and bases that are trained.
"""

from __future__ import annotations

import copy
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from node.kernels.dispatch import has_products, is_for_triton
from node.kernels.products import float32_product, has_float32_results
from node.kernels.trial import agrees, differ, with_gradients
from node.learner.objective.network.norms import ROUNDINGS, ROWS
from node.policy.adapter import is_adapted_layer
from node.policy.four_bit import unpacked

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PLAIN: Final = frozenset({"Linear", "Linear4bit"})
"""The names of PEFT's layers, and of what they adapt, that compute the above."""
SUMS: Final = 2.0**-13
"""By how much gradients of factors may differ, relative to the largest: tensor cores cut sums off where others round. A
factor that is rounded to bfloat16 moves each of its numbers by up to 2⁻⁹."""


def use_one_call_adapters(model: PreTrainedModel, device: torch.device) -> int:
    """Makes the adapted layers of ``model``, which computes on ``device``, do so in few calls. Returns how many do.

    None where Triton does not compile for the device or uses no tensor cores there, or its library has no products of
    bfloat16 with a float32 result. Whether the calls compute what PEFT does is tried on random rows, once for each kind
    of layer.
    """
    if not is_for_triton(device) or not has_products(device):
        return 0
    if device.type == "cuda" and not has_float32_results(device):
        return 0
    found, agree = 0, dict[object, bool]()
    for layer in model.modules():
        if not _is_plain(layer, device):
            continue
        own = vars(layer).get("forward")
        if own is None:
            kind = type(layer.base_layer)
            if kind not in agree:
                agree[kind] = agrees("adapters", device, partial(_disagreement, layer))
            if agree[kind]:
                layer.forward = own = MethodType(_forward, layer)
        found += getattr(own, "__func__", None) is _forward
    return found


def _is_plain(layer: Any, device: torch.device) -> bool:
    if not is_adapted_layer(layer) or type(layer).__name__ not in PLAIN:
        return False
    base: Any = layer.base_layer
    if type(base).__name__ not in PLAIN or base.weight.requires_grad or base.weight.device.type != device.type:
        return False
    if _computed(layer) is None:
        return False
    return base.weight.dtype == torch.bfloat16 or getattr(base, "compute_dtype", None) == torch.bfloat16


def _forward(layer: Any, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
    name = _computed(layer)
    if name is None or arguments or named or x.dtype != torch.bfloat16 or not is_for_triton(x.device):
        own: Tensor = type(layer).forward(layer, x, *arguments, **named)
        return own
    adapted: Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
        x, layer.lora_A[name].weight, layer.lora_B[name].weight, float(layer.scaling[name]), layer.base_layer
    )
    return adapted


def _computed(layer: Any) -> str | None:
    """Returns the name of the one adapter with which the layer is to compute; None where that is another formula."""
    names = layer.active_adapters
    if len(names) != 1 or names[0] not in layer.lora_A or layer.merged or layer.disable_adapters:
        return None
    name: str = names[0]
    changed = name in layer.lora_variant or layer.lora_bias[name]
    drops = layer.training and not isinstance(layer.lora_dropout[name], torch.nn.Identity)
    exact = layer.lora_A[name].weight.dtype == layer.lora_B[name].weight.dtype == torch.float32
    return name if exact and not changed and not drops else None


class _Adapted(torch.autograd.Function):
    """``apply(x, down, up, scale, base)`` returns y for x (..., in), ``down`` A, ``up`` B and the layer ``base``, whose
    weight and bias get no gradient. The module has the equations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, down: Tensor, up: Tensor, scale: float, base: Any) -> Tensor:
        from node.kernels.training.triton_adapter import add_product, split_factors

        ctx.set_materialize_grads(False)
        rows, rank = x.reshape(-1, x.shape[-1]), len(down)
        down, up = split_factors(down, up)
        y: Tensor = base(x)  # a tensor of its own: nothing else has it, and the product is added to it in place
        thin = add_product(
            y.view(-1, len(up)), float32_product(rows, down.T), scale, up.view(-1, 3, rank).movedim(0, 2)
        )
        ctx.save_for_backward(rows, down, up, thin)
        ctx.scale, ctx.base = scale, base
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        from node.kernels.training.triton_adapter import add_product

        if g is None:
            return None, None, None, None, None
        rows, down, up, thin = ctx.saved_tensors
        rank, slope = thin.shape[1] // 3, g.reshape(-1, g.shape[-1])
        needs_x, needs_down, needs_up, _, _ = ctx.needs_input_grad
        of_x = of_down = of_up = None
        if needs_x or needs_down:
            of_x = slope @ unpacked(ctx.base.weight).to(slope.dtype) if needs_x else None
            back = add_product(of_x, float32_product(slope, up), ctx.scale, down.view(3, rank, -1))  # d, in parts
            if needs_down:
                of_down = float32_product(back.T, rows).view(3, rank, -1).sum(0)
            if of_x is not None:
                of_x = of_x.view(*g.shape[:-1], -1)
        if needs_up:
            of_up = float32_product(slope.T, thin).view(-1, 3, rank).sum(1)
        return of_x, of_down, of_up, None, None


def _disagreement(layer: Any) -> str | None:
    base = layer.base_layer
    twin: Any = copy.deepcopy(layer, {id(base): base})
    name = twin.active_adapters[0]
    factors = [twin.lora_A[name].weight, twin.lora_B[name].weight]
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(base.weight.device)

    for factor in factors:
        factor.data = drawn(*factor.shape) / factor.shape[1] ** 0.5
    x, slope = (drawn(ROWS, size).bfloat16() for size in (base.in_features, base.out_features))
    leaves, ways = [x.requires_grad_(), *factors], (MethodType(type(twin).forward, twin), MethodType(_forward, twin))
    found = (with_gradients(lambda x, *factors, way=way: way(x), leaves, [slope]) for way in ways)
    rounding = ROUNDINGS * torch.finfo(torch.bfloat16).eps
    bounds = rounding, rounding, SUMS, SUMS
    same = all(not differ(ours, peft, bound) for peft, ours, bound in zip(*found, bounds, strict=True))
    return None if same else "an adapted layer, or its gradients, are computed otherwise"
