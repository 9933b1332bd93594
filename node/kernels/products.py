"""Matrix products, alone or with the elementwise operation that follows them in a transformer's layer.

In float32 on a CPU they use oneDNN. Its kernels use the widest vectors of every vendor's processor, which torch's
default BLAS may not (a factor of two on AMD), and apply the following operation while the result is in registers.
Elsewhere they are plain torch operations. Both take weights in torch's form, (out, in).
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
    """The operators that torch's compiler emits for a CPU, called directly."""

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
    """Returns the fastest products for this device and dtype on this build of torch."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    onednn = available and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return OneDnnProducts() if onednn and device.type == "cpu" and dtype == torch.float32 else TorchProducts()
