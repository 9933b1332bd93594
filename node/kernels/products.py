"""Matrix products, alone or with the elementwise operation that follows them in a transformer's layer.

In float32 on a CPU they use the faster of two libraries, and both take weights in torch's form, (out, in). MKL, which
is torch's BLAS, begins a product in a few microseconds and reads the weights as they lie: on Intel's processors, and on
an AMD EPYC with AVX2, products of 8 to 128 rows take a third to nine tenths of oneDNN's time. On AVX-512 of other
vendors MKL leaves half of each vector unused, and oneDNN does not; it also applies the following operation while the
result is in registers. The choice follows from the processor alone, so that equal inputs give equal bits run after run.

Products of bfloat16 with a float32 result are those of tensor cores, where the device's library has them.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

log: Final = logging.getLogger(__name__)
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
        added = torch.addmm(other, x, weight.T)
        return added if bias is None else added.add_(bias)


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


def float32_product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a · b (n, m) float32 for bf16 (n, k) and (k, m): exact products, summed in float32."""
    if a.device.type == "cuda" and has_float32_results(a.device):
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


@cache
def has_float32_results(device: torch.device) -> bool:
    """Returns whether the library of a CUDA device multiplies bf16 to float32: cuBLAS does, ROCm's may refuse."""
    one = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    try:
        return bool((torch.mm(one, one, out_dtype=torch.float32) == 16).all())
    except RuntimeError as error:
        log.info("products of bfloat16 with float32 results are computed in float32, slower: %s", error)
        return False


def products_for(device: torch.device, dtype: torch.dtype) -> Products:
    """Returns the fastest products for this device and dtype on this processor and build of torch."""
    if device.type != "cpu" or dtype != torch.float32:
        return TorchProducts()
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    onednn = available and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return OneDnnProducts() if onednn and not mkl_suits_processor() else TorchProducts()


@cache
def mkl_suits_processor() -> bool:
    available: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    widest = torch.backends.cpu.get_cpu_capability()
    return available and (widest != "AVX512" or is_intel(Path("/proc/cpuinfo"), platform.processor()))


def is_intel(description: Path, name: str) -> bool:
    """``description`` is Linux's file about its processors, ``name`` what the system says where there is none."""
    try:
        with description.open(encoding="ascii", errors="replace") as lines:
            return any(line.startswith("vendor_id") and "GenuineIntel" in line for line in lines)
    except OSError:
        return "GenuineIntel" in name
