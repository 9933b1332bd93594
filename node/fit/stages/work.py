"""What a round costs where a model's layers are on several machines, in flops, and how layers follow speed. Pure.

With P_l weights in a layer, P_h in the head, n tokens, c of them completions', in flops:

    forward    2 P_l n a layer, 2 P_h c at the head, and 4 · queries · columns a token and layer of attention
    backward   once that for an adapter (gradients of what enters), twice for whole weights; once more for what is
               recomputed: the head, and layers unless what they keep is held
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from node.fit.activations import ELEMENT_BYTES
from node.fit.model_sizes import ModelSizes
from node.fit.settings import MemorySettings


@dataclass(frozen=True, slots=True)
class Round:
    """``groups`` of ``completions``, which share a prompt; tokens of each, and of a micro-batch."""

    groups: int
    completions: int
    prompt: int
    own: int
    pass_tokens: int

    @property
    def rows(self) -> int:
        return self.groups * self.completions

    @property
    def tokens(self) -> int:
        return self.groups * self.prompt + self.rows * self.own

    @property
    def micro_batches(self) -> int:
        return -(-self.tokens // self.pass_tokens)


@dataclass(frozen=True, slots=True)
class Training:
    """A model and what of it is trained."""

    sizes: ModelSizes
    whole: bool
    recompute: bool = True  # layers

    def layer_flops(self, a_round: Round) -> tuple[float, float]:
        """Returns the forward and the backward pass of one layer over a round."""
        sizes = self.sizes
        columns = a_round.prompt + a_round.own / 2
        forward = a_round.tokens * (2.0 * sizes.layer_parameters + 4.0 * sizes.queries * columns)
        return forward, forward * (1 + self.whole + self.recompute)

    def head_flops(self, a_round: Round) -> tuple[float, float]:
        forward = 2.0 * self.sizes.vocabulary * self.sizes.hidden * a_round.rows * a_round.own
        return forward, forward * (3 if self.whole else 2)


def layers_by_time(
    layers: int, seconds: Sequence[float], beside: Sequence[float], least: Sequence[int], most: Sequence[int]
) -> list[int]:
    """Returns how many layers each machine holds, so that the last one ends as early as can be.

    ``seconds``: what a layer takes on each; ``beside``: what else each machine does, of which the owner, the first one,
    has the head. ``least`` and ``most`` are layers of each machine; there is room for all of them.
    """
    held = list(least)
    ends = [count * each + more for count, each, more in zip(held, seconds, beside, strict=True)]
    for _ in range(layers - sum(held)):
        free = [number for number in range(len(held)) if held[number] < most[number]]
        first = min(free, key=lambda number: ends[number] + seconds[number])
        held[first] += 1
        ends[first] += seconds[first]
    return held


def stage_sizes(sizes: ModelSizes, layers: int, *, is_owner: bool) -> ModelSizes:
    """Returns a model of those layers; the owner has embedding, head and last norm besides."""
    return replace(
        sizes,
        layers=layers,
        embedding_parameters=sizes.embedding_parameters * is_owner,
        head_parameters=sizes.head_parameters * is_owner,
        norm_parameters=sizes.norm_parameters * (2 * layers + is_owner) // (2 * sizes.layers + 1),
        vocabulary=sizes.vocabulary if is_owner else 1,
    )


def entering_bytes(sizes: ModelSizes, settings: MemorySettings) -> int:
    """Returns what each token of a further micro-batch keeps where layers are recomputed (``node.fit.activations``)."""
    return ELEMENT_BYTES[settings.dtype] * (sizes.layers * (sizes.hidden + 2 * sizes.keys) + sizes.hidden)
