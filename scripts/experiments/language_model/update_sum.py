"""A candidate for averaging: the weights of everybody are one sum of sparse updates, added in any order.

    e ← θ - φ + (1 - κ) e;   c ← top-k of e in two bits a value;   u ← α c     the sender's; α = min(1, pace / √live)
    e ← e - c
    φ ← base + Σ u      over every update that a replica has heard, its own at once
    θ ← φ + κ e         κ of what was not sent stays in one's own weights

A sum does not depend on the order of its terms, so replicas that have heard the same set hold the same φ (up to
rounding), without pairs, rounds, or agreement on who is there. The sender scales its update by the number of replicas
that it believes alive, once and for all receivers, so that they add equal terms whatever each believes.

κ = 0 sets θ ← φ, as SparseLoCo does: what an update has no room for is undone until it is sent. k is fixed, or as large
as a budget of bytes allows: what one replica takes in at an outer step is then the same for every number of replicas.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from node.averaging.noloco import Weights
from node.kernels.sparse_update_kernels import encode_update_fast
from protocol.weights.sparse_update import decode_update
from protocol.weights.sparsify import CHUNK_ELEMENTS, kept_count
from protocol.weights.tensor_layout import TensorLayout
from scripts.experiments.language_model.averaging_rules import ReplicaRule

MEND_STEPS: Final = 10  # outer steps until a lost update is missed, and fetched
LEAST_KEPT: Final = 8  # of 4096: in fewer, headers weigh more than elements
HEADER_BYTES, HEADER_BYTES_OF_TENSOR = 40, 21


@dataclass(frozen=True, slots=True, eq=False)
class SentUpdate:
    """u of one replica at one outer step, over all tensors laid end to end."""

    sender: int
    step: int
    positions: NDArray[np.int64]  # each once
    values: NDArray[np.float32]
    blob_bytes: int

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.values))


def kept_within(layout: TensorLayout, bytes_a_parameter: float) -> int:
    """Returns how many of 4096 elements an update of at most so many bytes has, ``LEAST_KEPT`` or more."""
    choices = range(LEAST_KEPT, CHUNK_ELEMENTS + 1)
    limit = bytes_a_parameter * sum(layout.sizes)
    return choices[max(0, bisect_right(choices, limit, key=lambda kept: expected_bytes(layout, kept)) - 1)]


@cache
def expected_bytes(layout: TensorLayout, kept: int) -> float:
    """Returns the bytes of an update of elements at random places: a Rice-coded gap and two bits each, and headers."""
    share = kept / CHUNK_ELEMENTS
    rice_bits = [bits + 1 / (1 - (1 - share) ** (1 << bits)) for bits in range(12)]
    elements = sum(kept_count(size, kept) for size in layout.sizes)
    return elements * (2 + min(12.0, *rice_bits)) / 8 + HEADER_BYTES_OF_TENSOR * len(layout.sizes) + HEADER_BYTES


class UpdateSum(ReplicaRule):
    """Every update reaches every other replica up to ``latest`` outer steps late, a share ``lost`` of them only
    ``MEND_STEPS`` later, or never if not ``mended``. An absent replica hears what it missed when it returns."""

    def __init__(
        self,
        weights: Weights,
        count: int,
        random: Random,
        *,
        pace: float,
        unsent_kept: float,
        kept: int = 64,
        budget: float | None = None,
        latest: int = 0,
        lost: float = 0.0,
        mended: bool = True,
    ) -> None:
        """``budget``, if any, decides instead of ``kept``: bytes a parameter that a replica takes in at an outer
        step."""
        super().__init__(weights, count, random)
        self._pace, self._unsent_kept, self._kept, self._budget = pace, unsent_kept, kept, budget
        self._latest, self._lost, self._mended = latest, lost, mended
        base = self.flat(weights)
        self.sums = [base.clone() for _ in range(count)]  # φ
        self._unsent = [torch.zeros_like(base) for _ in range(count)]  # e
        self._coming: list[list[tuple[int, SentUpdate]]] = [[] for _ in range(count)]  # (due, update) by receiver
        self._steps = 0

    def outer(self, offered: Sequence[Weights]) -> list[Weights]:
        self._steps += 1
        here = [number for number in range(self.count) if self.present[number]]
        for number in here:
            self._post(self.send(number, offered[number], len(here)))
        for number in here:
            self.hear(number, self._due(number))
        self.draw_together(here)
        return [self._own(number) if self.present[number] else offered[number] for number in range(self.count)]

    def send(self, number: int, theta: Weights, live: int) -> SentUpdate:
        """Makes a replica's update, and keeps what it has no room for."""
        unsent, away = self._unsent[number], self.flat(theta) - self.sums[number]
        unsent.mul_(1.0 - self._unsent_kept)  # θ - φ contains the rest already
        kept = self._kept
        if self._budget is not None:
            kept = kept_within(self.layout, self._budget / max(1, live - 1))
        parts, deltas = (list(torch.split(each, list(self.layout.sizes))) for each in (unsent, away))
        blob = encode_update_fast(self.layout, parts, deltas, decay=1.0, kept=kept)
        starts = np.cumsum([0, *self.layout.sizes[:-1]])
        update = decode_update(blob, self.layout)
        positions = np.concatenate([start + part.positions for start, part in zip(starts, update, strict=True)])
        values = np.concatenate([part.values for part in update])
        alpha = min(1.0, self._pace / live**0.5)
        return SentUpdate(number, self._steps, positions, np.float32(alpha) * values, len(blob))

    def hear(self, number: int, updates: Sequence[SentUpdate]) -> None:
        """Adds ``updates``, of which one may be the replica's own, to its weights."""
        for sent in updates:
            self.add(number, sent)

    def draw_together(self, here: Sequence[int]) -> None:
        """Mends what may make the φ of replicas differ; here nothing does."""

    def add(self, number: int, sent: SentUpdate, scale: float = 1.0) -> None:
        self.sums[number].numpy()[sent.positions] += np.float32(scale) * sent.values

    def flat(self, weights: Weights) -> torch.Tensor:
        return torch.cat([weights[name].detach().reshape(-1) for name in self.layout.names])

    def _own(self, number: int) -> Weights:
        """Returns the weights that a replica goes on from."""
        flat = torch.add(self.sums[number], self._unsent[number], alpha=self._unsent_kept)
        parts = zip(self.layout.tensors, torch.split(flat, list(self.layout.sizes)), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    def _post(self, sent: SentUpdate) -> None:
        for receiver in range(self.count):
            due = self._steps
            if receiver != sent.sender:
                due += self.random.randint(0, self._latest) if self._latest else 0
                if self._lost and self.random.random() < self._lost:
                    if not self._mended:
                        continue
                    due += MEND_STEPS
            self._coming[receiver].append((due, sent))

    def _due(self, number: int) -> list[SentUpdate]:
        """Takes what reaches a replica now, and counts the bytes."""
        found = [sent for due, sent in self._coming[number] if due <= self._steps]
        self._coming[number] = [each for each in self._coming[number] if each[0] > self._steps]
        for sent in found:
            if sent.sender != number:
                self.count_received(sent.blob_bytes)
        return found
