"""The two rules by which a replica averages, behind one interface, and which of them a node takes.

    offer       θ as it is, and the state φ, … of the last outer step  →  what is sent, kept until the exchange is over
    averaged    with what came of the partner                          →  the state after one outer step; θ ← φ

``Dense`` sends θ in bf16 and takes NoLoCo's step (``noloco``); ``CompressedRule`` sends a fiftieth of it
(``compressed``).

Guarantees: neither writes to what it is given, so that an offer of which nothing came leaves no trace, in a residual
neither. What a partner sent is decoded, bounded and finite before it enters a step, and so is the state after it. φ
means the same in both: a state of either rule, from a checkpoint or a donor, is one that the other can go on from; the
momentum of the one and the residual of the other are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.averaging import compressed, noloco
from node.averaging.compressed import CompressedConstants, CompressedState
from node.averaging.noloco import Constants, OuterState, Weights
from node.configuration import AveragingSection
from protocol.errors import IntegrityError
from protocol.weights import compressed_weights, dense_weights
from protocol.weights.compressed_weights import decode_compressed
from protocol.weights.dense_weights import dense_bytes, dense_parts, open_dense
from protocol.weights.tensor_layout import TensorLayout
from swarm.averaging.weights_difference import difference_of

State = OuterState | CompressedState  # both have ``outer``, φ, and ``steps``
S = TypeVar("S", OuterState, CompressedState)

MAX_DENSE_WEIGHTS: Final = 50_000_000  # 100 MB, which cross a link of 50 Mbit/s in 16 s
RELEASED: Final = Constants()
COMPRESSED: Final = CompressedConstants()


@dataclass(frozen=True, slots=True, eq=False)
class AveragingStep:
    """What an exchange makes of a replica."""

    state: State
    distance: float | None  # ‖θ_i − θ_j‖ / ‖θ_i‖ as offered, or of φ over a sample; None where ours are all zero


class Offering(Protocol):
    """What one replica sends, and what it needs to average with what it gets."""

    @property
    def content(self) -> Sequence[bytes | memoryview]:
        """The blob, in parts."""

    @property
    def size_bytes(self) -> int: ...

    def averaged(self, theirs: memoryview, weight: float) -> AveragingStep:
        """With a partner's blob, which counts ``weight`` ≤ 1 where ours counts 1.

        Raises ``ProtocolError`` for one that must not be averaged with.
        """


class Rule(Protocol):
    @property
    def encoding(self) -> str:
        """As offers name it: those of unlike rules decline each other."""

    def offer(self, weights: Weights, before: State | None, *, afresh: bool, random: Random) -> Offering:
        """Of ``weights`` θ, float32 in main memory, which must not change any more.

        ``before`` is the state after the last outer step, None before the first. With ``afresh`` that is too long ago
        to be gone on from. Raises ``IntegrityError`` for weights that nobody should be shown.
        """


def rule_of(section: AveragingSection, weights: int) -> tuple[Rule, str]:
    """The rule for a policy with so many trained weights, and why."""
    rules: dict[str, Rule] = {rule.encoding: rule for rule in (Dense(), CompressedRule())}
    if section.encoding != "auto":
        return rules[section.encoding], f"averaging.encoding is {section.encoding}"
    if weights <= MAX_DENSE_WEIGHTS:
        return Dense(), f"{weights:,} weights, no more than {MAX_DENSE_WEIGHTS:,}: whole, in bf16"
    return CompressedRule(), f"{weights:,} weights, more than {MAX_DENSE_WEIGHTS:,}: compressed"


def snapshot(state: State) -> dict[str, Tensor]:
    """Everything of the state by names of its own, for a checkpoint. Shares memory with the state."""
    return noloco.snapshot(state) if isinstance(state, OuterState) else compressed.snapshot(state)


def restore(tensors: Weights, weights: Weights) -> State | None:
    """The state in a checkpoint's tensors, for a policy with ``weights``; None where no averaging had begun.

    Raises ``StorageError`` for one that is not whole or belongs to another policy.
    """
    dense = noloco.restore(tensors, weights)
    return compressed.restore(tensors, weights) if dense is None else dense


# Whole weights


class Dense:
    encoding: Final = dense_weights.ENCODING

    def offer(self, weights: Weights, before: State | None, *, afresh: bool, random: Random) -> DenseOffering:
        _check_own(weights)
        steps = before.steps if before is not None else 0
        if isinstance(before, CompressedState):
            before = noloco.begin(before.outer, steps=steps)
        layout = compressed.layout_of(weights)
        return DenseOffering(layout, weights, None if afresh else before, steps, bf16_bits(weights, layout))


@dataclass(frozen=True, slots=True, eq=False)
class DenseOffering:
    layout: TensorLayout
    weights: Weights  # θ
    start: OuterState | None  # None: from θ itself, with m = 0
    steps: int  # outer steps taken before
    bits: list[NDArray[np.uint16]]  # as the partner will read it

    @property
    def content(self) -> Sequence[bytes | memoryview]:
        return dense_parts(self.layout, self.bits)

    @property
    def size_bytes(self) -> int:
        return dense_bytes(self.layout)

    def averaged(self, theirs: memoryview, weight: float) -> AveragingStep:
        bits = open_dense(theirs, self.layout)
        found = from_bf16_bits(bits, self.layout)
        start = self.start if self.start is not None else noloco.begin(self.weights, steps=self.steps)
        after = noloco.outer_step(start, [self.weights, found], RELEASED, shares=(1.0, weight))
        apart = difference_of(bits, self.bits)
        return AveragingStep(
            _checked(after, self.weights), apart.norm / apart.own_norm if apart.own_norm > 0.0 else None
        )


def bf16_bits(weights: Weights, layout: TensorLayout) -> list[NDArray[np.uint16]]:
    """Bit patterns of the weights rounded to bf16, flat, in the layout's order."""
    rounded = [weights[name].to("cpu", torch.bfloat16).contiguous() for name in layout.names]
    return [tensor.view(torch.int16).numpy().view(np.uint16).reshape(-1) for tensor in rounded]


def from_bf16_bits(bits: Sequence[NDArray[np.uint16]], layout: TensorLayout) -> dict[str, Tensor]:
    """The same, back, as a copy."""
    pairs = zip(layout.tensors, bits, strict=True)
    return {n: torch.from_numpy(b.view(np.int16).copy()).view(torch.bfloat16).reshape(s) for (n, s), b in pairs}


# A sparse update, and a slice


class CompressedRule:
    encoding: Final = compressed_weights.ENCODING

    def offer(self, weights: Weights, before: State | None, *, afresh: bool, random: Random) -> CompressedOffering:
        _check_own(weights)
        try:
            start = _start(weights, before, afresh=afresh)
            sent = compressed.compress(start, weights, random.randrange(COMPRESSED.stride), COMPRESSED)
        except ValueError as error:
            raise IntegrityError(f"our own weights are not fit to be offered: {error}") from error
        return CompressedOffering(compressed.layout_of(weights), start, sent)


def _start(weights: Weights, before: State | None, *, afresh: bool) -> CompressedState:
    if before is None:
        return compressed.begin(weights)
    state = before if isinstance(before, CompressedState) else compressed.begin(before.outer, before.steps)
    return compressed.brought_up(state, weights, COMPRESSED) if afresh else state


@dataclass(frozen=True, slots=True, eq=False)
class CompressedOffering:
    layout: TensorLayout
    start: CompressedState
    sent: compressed.CompressedOffer

    @property
    def content(self) -> Sequence[bytes | memoryview]:
        return [self.sent.blob]

    @property
    def size_bytes(self) -> int:
        return len(self.sent.blob)

    def averaged(self, theirs: memoryview, weight: float) -> AveragingStep:
        found = decode_compressed(theirs, self.layout)
        after, apart = compressed.outer_step_and_distance(self.start, self.sent, found, COMPRESSED, share=weight)
        return AveragingStep(_checked(after, self.start.outer), apart)


def _check_own(weights: Weights) -> None:
    unfit = noloco.unfit_because(weights, weights)
    if unfit is not None:
        raise IntegrityError(f"our own weights are not fit to be offered: {unfit.detail}")


def _checked(after: S, weights: Weights) -> S:
    unfit = noloco.unfit_because(weights, after.outer)
    if unfit is not None:
        raise IntegrityError(f"averaged with the partner's our weights would be unfit: {unfit.detail}")
    return after
