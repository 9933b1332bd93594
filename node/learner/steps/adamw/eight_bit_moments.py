"""AdamW with both moments in 8 bits: "8-bit Optimizers via Block-wise Quantization" (Dettmers and others, arXiv
2110.02861), by bitsandbytes' own operator.

Each moment is an index into 256 values that are dense around 0 (a dynamic exponent), times a float32 scale of its block
of 256 neighbours. A step reads them, computes in float32 and writes them back. Tensors below 4096 weights keep float32.

Tensors go through bitsandbytes in slices of a million weights: a whole one would need 22 bytes a weight besides. On
CUDA it is one compiled kernel without further memory. On the CPU it is many operations that allocate between its
writes: it gets copies of a slice, which are written back at its end. The operator is called rather than bitsandbytes'
own optimizer class, so that the state has names of ours and survives a checkpoint to the bit.
``scripts/bench/optimizer.py`` compares it with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from node.learner.memory.errors import completed
from node.learner.steps.adamw.block_codes import BlockCodes, code_book, operators
from node.learner.steps.adamw.saved_moments import BETA1, BETA2, EPSILON, Moments, SavedMoments
from node.learner.steps.adamw.slices import slices_of


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    first: BlockCodes
    second: BlockCodes
    steps: list[int]  # of each slice

    def tensors(self) -> dict[str, Tensor]:
        return {
            "exp_avg": self.first.codes,
            "exp_avg_scales": self.first.scales,
            "exp_avg_sq": self.second.codes,
            "exp_avg_sq_scales": self.second.scales,
        }

    def take(self, saved: SavedMoments) -> None:
        for ours, theirs in ((self.first, saved.first), (self.second, saved.second)):
            if isinstance(theirs, BlockCodes):
                ours.codes.copy_(theirs.codes)
                ours.scales.copy_(theirs.scales)
            else:
                ours.fill(theirs)


class EightBitMoments(Moments[_Moments]):
    """``Moments`` in 8 bits, for float32 weights on the CPU or on CUDA."""

    def step(self, name: str, index: int, part: slice, gradient: Tensor, rate: float, weight_decay: float) -> None:
        weights, moments = self._weights[name], self._moments[name]
        live = (weights.view(-1)[part], *moments.first.part(part), *moments.second.part(part))
        changing = live if weights.device.type == "cuda" else tuple(tensor.clone() for tensor in live)
        values, first, first_scales, second, second_scales = changing
        operators().optimizer_update_8bit_blockwise(
            "adam",
            gradient,
            values,
            first,
            second,
            BETA1,
            BETA2,
            0.0,  # β₃ and α are AdEMAMix's
            0.0,
            EPSILON,
            moments.steps[index] + 1,
            rate,
            code_book(weights.device, signed=True),
            code_book(weights.device, signed=False),
            first_scales,
            second_scales,
            weight_decay,
        )
        if changing is not live:
            completed(lambda: _write(changing, live))
        moments.steps[index] += 1

    def _zeros(self, weights: Tensor) -> _Moments:
        steps = [0 for _ in slices_of(weights.numel(), weights.device)]
        return _Moments(BlockCodes.zeros(weights, signed=True), BlockCodes.zeros(weights, signed=False), steps)


def _write(changed: Sequence[Tensor], live: Sequence[Tensor]) -> None:
    for here, there in zip(live, changed, strict=True):
        here.copy_(there)
