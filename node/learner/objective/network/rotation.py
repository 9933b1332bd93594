"""The rotation of queries and keys in one call for each direction, where Triton compiles.

transformers writes it as twelve operations, some thirty with those of the backward pass. As with norms (``norms``), the
host starts every one of them while the card waits. Its models look the function up by its name in their own module, so
it is replaced there, for all models of that kind in this process; tensors that are not for Triton, and angles of
another shape, still go to transformers' own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from node.kernels.dispatch import is_for_triton
from node.kernels.trial import agrees, differ, with_gradients
from node.learner.objective.network.norms import ROUNDINGS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME: Final = "apply_rotary_pos_emb"
ARGUMENTS: Final = ("q", "k", "cos", "sin", "unsqueeze_dim")
Rotation = Callable[..., tuple[Tensor, Tensor]]


def use_one_call_rotation(model: PreTrainedModel, device: torch.device) -> bool:
    """Makes ``model``, which computes on ``device``, rotate queries and keys in one call; False where Triton does not
    compile for that, or its own function computes something else, which is tried on random heads."""
    if not is_for_triton(device):
        return False
    module = sys.modules[type(model).__module__]
    own: Any = getattr(module, NAME, None)
    if isinstance(own, _OneCall):
        return True
    if own is None or tuple(inspect.signature(own).parameters) != ARGUMENTS:
        return False
    if not agrees("rotating", device, lambda: _disagreement(own, device, model.dtype)):
        return False
    setattr(module, NAME, _OneCall(own))
    return True


class _OneCall:
    """transformers' ``own`` function, and in its place one call wherever tensors allow."""

    def __init__(self, own: Rotation) -> None:
        self._own = own

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if unsqueeze_dim == 1 and is_for_triton(q.device) and q.ndim == 4 and cos.shape[1:] == q.shape[2:]:
            return _in_one_call(q, k, cos, sin)
        return self._own(q, k, cos, sin, unsqueeze_dim)


def _in_one_call(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    from node.kernels.training.triton_rotation import RotateBoth

    rotated: tuple[Tensor, Tensor] = RotateBoth.apply(q, k, cos, sin)  # type: ignore[no-untyped-call]
    return rotated


def _disagreement(own: Rotation, device: torch.device, dtype: torch.dtype) -> str | None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    sizes = ((2, 3, 5, 16), (2, 1, 5, 16))
    heads, angles = [drawn(*size) for size in sizes], drawn(2, 5, 8)
    cos, sin = (torch.cat((wave, wave), dim=-1) for wave in (angles.cos(), angles.sin()))
    weights = [drawn(*size) for size in sizes]
    leaves = [head.requires_grad_() for head in heads]
    found = (
        with_gradients(lambda queries, keys, way=way: way(queries, keys, cos, sin), leaves, weights)
        for way in (own, _in_one_call)
    )
    bound = ROUNDINGS * torch.finfo(dtype).eps
    same = all(not differ(ours, wanted, bound) for wanted, ours in zip(*found, strict=True))
    return None if same else "queries and keys, or their gradients, are rotated otherwise"
