"""AdamW with both moments in 8 bits: "8-bit Optimizers via Block-wise Quantization" (Dettmers and others, arXiv
2110.02861), by bitsandbytes' own operator.

Each moment is an index into 256 values that are dense around 0 (a dynamic exponent), times a float32 scale of its block
of 256 neighbours. A step reads them, computes in float32 and writes them back. Tensors below 4096 weights keep float32.

Why bitsandbytes. Measured for 50 million float32 weights on one core (``scripts/bench/optimizer.py``): torch's AdamW in
float32 takes 0.06 s a step. bitsandbytes 0.50 takes 1.1 s and needs 22 bytes a weight besides when it is given a whole
tensor, 0.5 in slices of a million weights, which is what it gets here. ``torchao.optim.AdamW8bit`` 0.18 compiles: 21 s
for the first step of every shape of tensor, with a compiler that a user's machine may lack, then 2.3 s; without
compiling 18 s and 54 bytes a weight. On CUDA bitsandbytes is one compiled kernel without further memory. On the CPU it
is many operations that allocate between its writes: it gets copies of a slice, which are written back at its end.
The operator is called rather than bitsandbytes' own optimizer class, so that the state has names of ours and survives
a checkpoint to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from node.learner.memory.errors import completed
from node.learner.steps.adamw.block_codes import BlockCodes, code_book, operators
from node.learner.steps.adamw.constants import BETA1, BETA2, EPSILON
from node.learner.steps.adamw.saved_moments import SavedMoments
from node.learner.steps.adamw.slices import slices_of


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    first: BlockCodes
    second: BlockCodes
    steps: list[int]  # of each slice


class EightBitMoments:
    """``Moments`` in 8 bits, for float32 weights on the CPU or on CUDA."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = dict(weights)
        self._moments: dict[str, _Moments] = {}

    def prepare(self) -> None:
        self._moments |= {name: _zeros(w) for name, w in self._weights.items() if name not in self._moments}

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

    def state(self, name: str) -> dict[str, Tensor]:
        if name not in self._moments:
            return {}
        moments = self._moments[name]
        return {
            "step": torch.tensor(float(moments.steps[0])),
            "exp_avg": moments.first.codes,
            "exp_avg_scales": moments.first.scales,
            "exp_avg_sq": moments.second.codes,
            "exp_avg_sq_scales": moments.second.scales,
        }

    def restore(self, name: str, saved: SavedMoments) -> None:
        moments = self._moments[name] = self._moments.get(name) or _zeros(self._weights[name])
        moments.steps[:] = [saved.step] * len(moments.steps)
        for ours, theirs in ((moments.first, saved.first), (moments.second, saved.second)):
            if isinstance(theirs, BlockCodes):
                ours.codes.copy_(theirs.codes)
                ours.scales.copy_(theirs.scales)
            else:
                ours.fill(theirs)


def _write(changed: Sequence[Tensor], live: Sequence[Tensor]) -> None:
    for here, there in zip(live, changed, strict=True):
        here.copy_(there)


def _zeros(weights: Tensor) -> _Moments:
    steps = [0 for _ in slices_of(weights.numel())]
    return _Moments(BlockCodes.zeros(weights, signed=True), BlockCodes.zeros(weights, signed=False), steps)
