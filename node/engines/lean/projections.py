"""A layer's matrices as the lean decoder applies them.

dense      y = x Wᵀ + b, by the fastest product of the device
adapted    y = x Wᵀ + b + s (x Aᵀ) Bᵀ: the adapter W + s B A without a copy of W
module     whatever the module computes, such as a product with weights of four bits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from node.kernels.products import ACTIVATIONS, Products


class PlainProjection(Protocol):
    """``x`` is (n, in), the result (n, out). The result may be written to."""

    def plain(self, x: Tensor) -> Tensor: ...


class Projection(PlainProjection, Protocol):
    """Also joins the elementwise operation that follows; ``other`` is (n, out)."""

    def activated(self, x: Tensor, activation: str) -> Tensor: ...

    def times(self, x: Tensor, other: Tensor) -> Tensor: ...

    def plus(self, x: Tensor, other: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class DenseProjection:
    """``weight`` is (out, in), ``bias`` (out,) or None."""

    products: Products
    weight: Tensor
    bias: Tensor | None

    def plain(self, x: Tensor) -> Tensor:
        return self.products.plain(x, self.weight, self.bias)

    def activated(self, x: Tensor, activation: str) -> Tensor:
        return self.products.activated(x, self.weight, self.bias, activation)

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self.products.times(x, self.weight, self.bias, other)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self.products.plus(x, self.weight, self.bias, other)


@dataclass(frozen=True, slots=True, eq=False)
class ThinProduct:
    """One adapter: ``down`` (r, in), ``up`` (out, r), ``scale``."""

    down: Tensor
    up: Tensor
    scale: float

    def added_to(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(y, x @ self.down.T, self.up.T, alpha=self.scale, out=y)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedProjection:
    base: DenseProjection
    adapters: Sequence[ThinProduct]

    def plain(self, x: Tensor) -> Tensor:
        return self._adapted(self.base.plain(x), x)

    def activated(self, x: Tensor, activation: str) -> Tensor:
        return ACTIVATIONS[activation][0](self.plain(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self.plain(x).mul_(other)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self._adapted(self.base.plus(x, other), x)

    def _adapted(self, y: Tensor, x: Tensor) -> Tensor:
        for adapter in self.adapters:
            y = adapter.added_to(y, x)
        return y


@dataclass(frozen=True, slots=True, eq=False)
class ModuleProjection:
    """Reads the live module at every call."""

    module: nn.Module

    def plain(self, x: Tensor) -> Tensor:
        result: Tensor = self.module(x)
        return result

    def activated(self, x: Tensor, activation: str) -> Tensor:
        return ACTIVATIONS[activation][0](self.plain(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self.plain(x) * other

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self.plain(x) + other
