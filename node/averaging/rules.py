"""The two rules for averaging weights, behind one interface, and the choice between them.

    offer       present θ, and the state φ, … after the last outer step  →  what is sent, kept until the exchange ends
    averaged    the partner's blob                                       →  the state after one outer step
    moved       the state, and what was learnt since the offer           →  θ

``DenseRule`` sends θ in bf16 and takes NoLoCo's step (``noloco``); ``CompressedRule`` sends 1/25 of it
(``compressed``). The two modules have the same functions: ``begin``, ``outer_step``, ``snapshot``, ``restore``.

Guarantees: neither rule writes to what it is given, so that an offer without a result leaves no trace, not in a
residual either. What a partner sent is decoded, bounded and finite before it enters a step, and so is the state after
it. φ means the same in both: each rule can continue from a state of the other, from a checkpoint or a donor, without
the momentum of the one, and with the residual of the other in φ, as if all had been sent.
"""

from __future__ import annotations

import math
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
from node.averaging.noloco import NolocoConstants, OuterState, Weights
from node.configuration import AveragingSection
from node.policy.weight_layout import layout_of
from protocol.errors import IntegrityError
from protocol.weights import compressed_weights, dense_weights
from protocol.weights.compressed_weights import decode_compressed
from protocol.weights.dense_weights import dense_bytes, dense_parts, open_dense
from protocol.weights.sparsify import norm_of
from protocol.weights.tensor_layout import TensorLayout
from swarm.averaging.weights_difference import difference_of

State = OuterState | CompressedState  # both have ``outer``, φ, and ``steps``
S = TypeVar("S", OuterState, CompressedState)

MAX_DENSE_WEIGHTS: Final = 50_000_000  # 100 MB: 16 s over a link of 50 Mbit/s
RELEASED: Final = NolocoConstants()
COMPRESSED: Final = CompressedConstants()


@dataclass(frozen=True, slots=True, eq=False)
class AveragingStep:
    """The result of an exchange for one replica."""

    state: State
    distance: float | None  # ‖θ_i − θ_j‖ / ‖θ_i‖ as offered, or that of φ over a sample; None if ours are all zero


class Offering(Protocol):
    """What one replica sends, and what it needs for averaging with what it receives."""

    @property
    def content(self) -> Sequence[bytes | memoryview]:
        """The blob, in parts."""

    @property
    def size_bytes(self) -> int: ...

    def learnt(self, since: Weights) -> float:
        """Returns the length of what was learnt ``since`` the last outer step, as the encoding measures distances."""

    def averaged(self, theirs: memoryview, weight: float) -> AveragingStep:
        """Averages with a partner's blob, which counts ``weight`` ≤ 1 where ours counts 1.

        Raises ``ProtocolError`` for a blob that must not be used.
        """


class AveragingRule(Protocol):
    @property
    def encoding(self) -> str:
        """The rule's name in offers: nodes with different ones decline each other."""

    def offer(self, weights: Weights, before: State | None, *, afresh: bool, random: Random) -> Offering:
        """Makes an offer of ``weights`` θ, float32 in main memory, which must not change afterwards.

        ``before`` is the state after the last outer step, None before the first. With ``afresh`` that step was too long
        ago to continue from. Raises ``IntegrityError`` for weights that must not be sent.
        """


def rule_of(section: AveragingSection, weights: int) -> tuple[AveragingRule, str]:
    """Returns the rule for a policy with so many trained weights, and the reason."""
    rules: dict[str, AveragingRule] = {rule.encoding: rule for rule in (DenseRule(), CompressedRule())}
    if section.encoding != "auto":
        return rules[section.encoding], f"averaging.encoding is {section.encoding}"
    if weights <= MAX_DENSE_WEIGHTS:
        return DenseRule(), f"{weights:,} weights, no more than {MAX_DENSE_WEIGHTS:,}: whole, in bf16"
    return CompressedRule(), f"{weights:,} weights, more than {MAX_DENSE_WEIGHTS:,}: compressed"


def moved(weights: Weights, offered: Weights, after: State) -> dict[str, Tensor]:
    """Returns the new θ, on the device of ``weights``: φ, what was learnt since ``offered``, and of the compressed rule
    κ e, what was not sent yet."""
    new = noloco.overlapped(weights, offered, after.outer)
    if isinstance(after, CompressedState):
        for name, tensor in new.items():
            tensor.add_(after.residual[name].to(tensor.device), alpha=COMPRESSED.unsent_kept)
    return new


def averaging_snapshot(state: State) -> dict[str, Tensor]:
    """Returns the whole state as tensors by name, for a checkpoint. They share memory with the state."""
    return noloco.snapshot(state) if isinstance(state, OuterState) else compressed.snapshot(state)


def restore_averaging(tensors: Weights, weights: Weights) -> State | None:
    """Returns the state in a checkpoint's tensors, for a policy with ``weights``; None if they hold none.

    Raises ``StorageError`` for a state that is incomplete or belongs to another policy.
    """
    dense = noloco.restore(tensors, weights)
    return compressed.restore(tensors, weights) if dense is None else dense


# Whole weights


class DenseRule:
    encoding: Final = dense_weights.ENCODING

    def offer(self, weights: Weights, before: State | None, *, afresh: bool, random: Random) -> DenseOffering:
        _check_own(weights)
        steps = before.steps if before is not None else 0
        if isinstance(before, CompressedState):
            before = noloco.begin(compressed.weights_of(before, COMPRESSED), steps=steps)
        layout = layout_of(weights)
        return DenseOffering(layout, weights, None if afresh else before, steps, bf16_bits(weights, layout))


@dataclass(frozen=True, slots=True, eq=False)
class DenseOffering:
    layout: TensorLayout
    weights: Weights  # θ
    start: OuterState | None  # None: from θ itself, with m = 0
    steps: int  # outer steps taken before
    bits: list[NDArray[np.uint16]]  # θ as the partner decodes it

    @property
    def content(self) -> Sequence[bytes | memoryview]:
        return dense_parts(self.layout, self.bits)

    @property
    def size_bytes(self) -> int:
        return dense_bytes(self.layout)

    def learnt(self, since: Weights) -> float:
        squares = (float((weights - since[name]).square().sum()) for name, weights in self.weights.items())
        return math.sqrt(sum(squares))

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
    """Returns the bit patterns of the weights rounded to bf16, flat, in the layout's order."""
    rounded = [weights[name].to("cpu", torch.bfloat16).contiguous() for name in layout.names]
    return [tensor.view(torch.int16).numpy().view(np.uint16).reshape(-1) for tensor in rounded]


def from_bf16_bits(bits: Sequence[NDArray[np.uint16]], layout: TensorLayout) -> dict[str, Tensor]:
    """Returns the weights of such bit patterns, as copies."""
    pairs = zip(layout.tensors, bits, strict=True)
    return {n: torch.from_numpy(b.view(np.int16).copy()).view(torch.bfloat16).reshape(s) for (n, s), b in pairs}


# A sparse update, and a slice


class CompressedRule:
    encoding: Final = compressed_weights.ENCODING

    def offer(self, weights: Weights, before: State | None, *, afresh: bool, random: Random) -> CompressedOffering:
        _check_own(weights)
        try:
            if before is None:
                start = compressed.begin(weights)
            elif isinstance(before, CompressedState):
                start = before  # however long ago: a step undoes nothing
            else:
                start = compressed.begin(before.outer, before.steps)
            sent = compressed.make_offer(start, weights, random.randrange(COMPRESSED.stride), COMPRESSED)
        except ValueError as error:
            raise IntegrityError(f"our own weights cannot be offered: {error}") from error
        return CompressedOffering(layout_of(weights), start, sent)


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

    def learnt(self, since: Weights) -> float:
        return math.sqrt(sum(norm_of(update) ** 2 for update in self.sent.update))

    def averaged(self, theirs: memoryview, weight: float) -> AveragingStep:
        found = decode_compressed(theirs, self.layout)
        after, apart = compressed.outer_step(self.start, self.sent, found, COMPRESSED, share=weight)
        return AveragingStep(_checked(after, self.start.outer), apart)


def _check_own(weights: Weights) -> None:
    unfit = noloco.unfit_weights(weights, weights)
    if unfit is not None:
        raise IntegrityError(f"our own weights cannot be offered: {unfit}")


def _checked(after: S, weights: Weights) -> S:
    unfit = noloco.unfit_weights(weights, after.outer)
    if unfit is not None:
        raise IntegrityError(f"averaging with the partner would make our weights unfit: {unfit}")
    return after
