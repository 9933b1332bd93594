"""The gate of MLPs in one call for each direction, where Triton compiles:  down(silu(gate(x)) ∘ up(x)).

transformers writes silu and the product as two operations, five with those of the backward pass, and autograd keeps
what each of them reads: gate(x), silu(gate(x)) and up(x), beside the product, which ``down`` keeps. In one call
silu(gate(x)) is not kept. The three projections are called as modules, so that adapters and bases in 4 bits compute as
before. Tensors that are not for Triton still go through the module's own ``forward``.
"""

from __future__ import annotations

import inspect
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn.functional import silu

from node.kernels.dispatch import is_for_triton
from node.kernels.trial import agrees, differ, with_gradients
from node.learner.objective.network.norms import ROUNDINGS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PARTS: Final = ("gate_proj", "up_proj", "down_proj", "act_fn")
NUMBERS: Final = 1500  # of the trial: more than a block of the kernel, and not a multiple of 16


def use_one_call_gates(model: PreTrainedModel, device: torch.device) -> int:
    """Makes every MLP of ``model``, which computes on ``device``, that returns down(silu(gate(x)) ∘ up(x)) compute its
    gate in one call. Returns how many do.

    Whether one returns that is tried with projections drawn at random, not read off its name: Gemma's take GELU. None
    does where Triton does not compile for the device, or computes something else there.
    """
    if not is_for_triton(device):
        return 0
    found = [module for module in model.modules() if _is_silu_gated(module, device)]
    if not found or not agrees("the gate of an MLP", device, lambda: _disagreement(device, model.dtype)):
        return 0
    for module in found:
        module.forward = MethodType(_in_one_call, module)
    return len(found)


def _in_one_call(mlp: Any, x: Tensor) -> Tensor:
    result: Tensor
    if is_for_triton(x.device):
        result = mlp.down_proj(_gated(mlp.gate_proj(x), mlp.up_proj(x)))
    else:
        result = type(mlp).forward(mlp, x)
    return result


def _gated(gates: Tensor, ups: Tensor) -> Tensor:
    from node.kernels.training.triton_gate import SiluGate

    gated: Tensor = SiluGate.apply(gates, ups)  # type: ignore[no-untyped-call]
    return gated


@torch.no_grad()
def _is_silu_gated(module: torch.nn.Module, device: torch.device) -> bool:
    own: Any = type(module).forward
    if not all(hasattr(module, part) for part in PARTS) or len(inspect.signature(own).parameters) != 2:
        return False
    replaced = vars(module).get("forward")
    if replaced is not None and getattr(replaced, "__func__", None) is not _in_one_call:
        return False
    generator = torch.Generator().manual_seed(0)
    x, *weights = 2 * torch.randn(4, NUMBERS, generator=generator).to(device)
    gate, up, down = (weight.mul for weight in weights)
    tried = SimpleNamespace(gate_proj=gate, up_proj=up, down_proj=down, act_fn=module.act_fn)
    try:
        result = own(tried, x)
    except AttributeError:  # it has more parts than these
        return False
    wanted, bound = down(silu(gate(x)) * up(x)), ROUNDINGS * torch.finfo(x.dtype).eps
    return isinstance(result, Tensor) and result.shape == wanted.shape and not differ(result, wanted, bound)


def _disagreement(device: torch.device, dtype: torch.dtype) -> str | None:
    generator = torch.Generator().manual_seed(0)
    gates, ups, slopes = torch.randn(3, NUMBERS, generator=generator).to(device, dtype)
    leaves = gates.requires_grad_(), ups.requires_grad_()
    ways = (lambda gates, ups: silu(gates) * ups), _gated
    found = (with_gradients(way, leaves, [slopes]) for way in ways)
    bound = ROUNDINGS * torch.finfo(dtype).eps
    same = all(not differ(ours, wanted, bound) for wanted, ours in zip(*found, strict=True))
    return None if same else "silu(gate) ∘ up, or a gradient of it, differs"
