"""A step goes through the weights slice by slice: what it needs besides them is a few slices, not a copy of all.

A gradient in bfloat16, or on another device than the masters, is copied into ``Scratch`` slice by slice; a float32
gradient beside its masters is scaled where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from node.fit.optimizer_size import SLICE_ELEMENTS, SLICES_ON_A_CARD


def slice_elements(device: torch.device) -> int:
    """Returns how much of a tensor on ``device`` is handled at once. On a card the host starts every slice, and it is
    the host that is waited for."""
    return SLICE_ELEMENTS * (SLICES_ON_A_CARD if device.type == "cuda" else 1)


def slices_of(elements: int, device: torch.device) -> Iterator[slice]:
    """Yields the parts of a flat tensor of so many ``elements``, all but the last of ``slice_elements``."""
    length = slice_elements(device)
    for begin in range(0, elements, length):
        yield slice(begin, min(begin + length, elements))


class Scratch:
    """Room for one slice beside the masters, in float32, and in each dtype that crosses from or to another device.

    Crossing devices and changing dtype are two copies: torch would do both at once by a copy of its own, on the device
    that is short of memory.
    """

    def __init__(
        self, masters: torch.device, parameters: torch.device, elements: int, dtypes: Iterable[torch.dtype]
    ) -> None:
        """``elements`` is the size of the largest tensor; ``dtypes`` are those of parameters and gradients."""
        room = min(elements, slice_elements(masters))
        self._float32 = torch.empty(room, device=masters, dtype=torch.float32)
        self._crosses = masters != parameters
        self._crossing = {
            dtype: torch.empty(room, device=masters, dtype=dtype, pin_memory=parameters.type == "cuda")
            for dtype in (dtypes if self._crosses else ())
        }

    def gradient(self, part: Tensor, factor: float) -> Tensor:
        """Returns the slice ``part`` (N,) of a gradient times ``factor``, as float32 (N,) beside the masters.

        What is returned is to be overwritten. It may be ``part`` itself, which is then multiplied.
        """
        if self._crosses:
            part = self._crossing[part.dtype][: part.numel()].copy_(part)
        here = part if part.dtype == torch.float32 else self._float32[: part.numel()].copy_(part)
        return here.mul_(factor) if factor != 1 else here

    def write(self, parameter: Tensor, master: Tensor) -> None:
        """Rounds the slice ``master`` (N,) into the parameter's slice (N,)."""
        if self._crosses:
            master = self._crossing[parameter.dtype][: master.numel()].copy_(master)
        parameter.copy_(master)
