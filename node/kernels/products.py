"""Matrix products, each alone or with the elementwise step that follows it in a transformer's layer.

In float32 on a CPU they go to oneDNN, whose kernels use the widest vectors of every vendor's processor, where the BLAS
that torch calls by default may not (a factor of two on AMD), and which does the following step while the result is in
registers. Everywhere else they are plain torch operations. Both take weights as they are, (out, in).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

# Name in a model's configuration → (torch function, oneDNN's name, oneDNN's variant).
ACTIVATIONS: Final[dict[str, tuple[Callable[[Tensor], Tensor], str, str]]] = {
    "silu": (functional.silu, "swish", ""),
    "gelu": (functional.gelu, "gelu", "none"),
    "relu": (functional.relu, "relu", ""),
}


class Products(Protocol):
    """``x`` is (n, in), ``weight`` (out, in), ``bias`` (out,) or None, ``other`` (n, out)."""

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def activated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor: ...

    def times(self, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor: ...

    def plus(self, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor: ...


class TorchProducts:
    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    def activated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        return ACTIVATIONS[activation][0](functional.linear(x, weight, bias))

    def times(self, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
        return functional.linear(x, weight, bias).mul_(other)

    def plus(self, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
        return functional.linear(x, weight, bias).add_(other)


class OneDnnProducts:
    """The operators that torch's own compiler emits for a CPU; callable without it."""

    def __init__(self) -> None:
        self._unary: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
        self._binary: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.binary

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._unary(x, weight, bias, "none", [], "")

    def activated(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        _, name, variant = ACTIVATIONS[activation]
        return self._unary(x, weight, bias, name, [], variant)

    def times(self, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
        return self._binary(x, other, weight, bias, "mul")

    def plus(self, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
        return self._binary(x, other, weight, bias, "add")


def products_for(device: torch.device, dtype: torch.dtype) -> Products:
    """The fastest products for tensors of this kind on this build of torch."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    onednn = available and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return OneDnnProducts() if onednn and device.type == "cpu" and dtype == torch.float32 else TorchProducts()
