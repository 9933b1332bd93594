"""A float32 tensor in 8 bits: for each value the index of one of 256 numbers that lie densely around 0, times a float32
scale of its block of 256 neighbours ("8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from node.fit.optimizer_size import BLOCK
from node.learner.steps.adamw.slices import slices_of


@cache
def operators() -> ModuleType:
    """Returns bitsandbytes' operators, imported when they are first needed: few nodes do."""
    return import_module("bitsandbytes.functional")


@cache
def code_book(device: torch.device, *, signed: bool) -> Tensor:
    """Returns the (256,) float32 numbers in [-1, 1], or [0, 1], that the codes stand for, ascending."""
    book: Tensor = operators().create_dynamic_map(signed=signed).to(device)
    return book


@dataclass(frozen=True, slots=True, eq=False)
class BlockCodes:
    codes: Tensor  # uint8, in the shape of what they stand for
    scales: Tensor  # (blocks,) float32
    signed: bool

    @classmethod
    def zeros(cls, like: Tensor, *, signed: bool) -> BlockCodes:
        zero = int(code_book(like.device, signed=signed).abs().argmin())
        codes = torch.full(like.shape, zero, dtype=torch.uint8, device=like.device)
        return cls(codes, torch.zeros(blocks_of(like.numel()), device=like.device), signed)

    def part(self, part: slice) -> tuple[Tensor, Tensor]:
        """Returns codes (N,) and scales of a slice that begins with a block, as live views."""
        return self.codes.view(-1)[part], self.scales[part.start // BLOCK : blocks_of(part.stop)]

    def fill(self, values: Tensor) -> None:
        """Rounds float32 ``values`` of the same shape, on any device, to the codes."""
        device = self.codes.device
        for part in slices_of(self.codes.numel(), self.codes.device):
            codes, scales = self.part(part)
            rounded, state = operators().quantize_blockwise(
                values.reshape(-1)[part].to(device), code=code_book(device, signed=self.signed), blocksize=BLOCK
            )
            codes.copy_(rounded)
            scales.copy_(state.absmax)

    def values(self) -> Tensor:
        """Returns what the codes stand for, in float32."""
        values = torch.empty(self.codes.shape, device=self.codes.device)
        for part in slices_of(self.codes.numel(), self.codes.device):
            codes, scales = self.part(part)
            book = code_book(codes.device, signed=self.signed)
            values.view(-1)[part] = operators().dequantize_blockwise(codes, absmax=scales, code=book, blocksize=BLOCK)
        return values


def blocks_of(elements: int) -> int:
    return -(-elements // BLOCK)
