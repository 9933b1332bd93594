"""A candidate for averaging: the weights of everybody are one sum of sparse updates, added in any order.

    e ← θ - φ + e;   c ← top-k of e in two bits a value;   u ← α c     the sender's; α = min(1, pace / √live)
    e ← e - c
    φ ← base + Σ u      over every update that a replica has heard, its own at once
    θ ← φ               as in SparseLoCo: what an update has no room for is undone until it is sent

A sum does not depend on the order of its terms, so replicas that have heard the same set hold the same φ (up to
rounding), without pairs, rounds, or agreement on who is there. The sender scales its update by the number of replicas
that it believes alive, once and for all receivers, so that they add equal terms whatever each believes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from node.averaging.noloco import Weights
from node.kernels.sparse_update_kernels import encode_update_fast
from protocol.weights.sparse_update import decode_update
from scripts.experiments.language_model.averaging_rules import ReplicaRule

MEND_STEPS: Final = 10  # outer steps until a lost update is missed, and fetched


@dataclass(frozen=True, slots=True, eq=False)
class SentUpdate:
    """u of one replica at one outer step, over all tensors laid end to end."""

    sender: int
    step: int
    positions: NDArray[np.int64]  # each once
    values: NDArray[np.float32]
    blob_bytes: int


class UpdateSum(ReplicaRule):
    """Every update reaches every other replica up to ``latest`` outer steps late, a share ``lost`` of them only
    ``MEND_STEPS`` later. An absent replica hears what it missed when it returns."""

    def __init__(
        self,
        weights: Weights,
        count: int,
        random: Random,
        *,
        pace: float,
        kept: int = 64,
        latest: int = 0,
        lost: float = 0.0,
    ) -> None:
        super().__init__(weights, count, random)
        self._pace, self._kept = pace, kept
        self._latest, self._lost = latest, lost
        base = self._flat(weights)
        self._sums = [base.clone() for _ in range(count)]  # φ
        self._unsent = [torch.zeros_like(base) for _ in range(count)]  # e
        self._coming: list[list[tuple[int, SentUpdate]]] = [[] for _ in range(count)]  # (due, update) by receiver
        self._steps = 0

    def outer(self, offered: Sequence[Weights]) -> list[Weights]:
        self._steps += 1
        here = [number for number in range(self.count) if self.present[number]]
        for number in here:
            self._post(self._sent_by(number, offered[number], len(here)))
        for number in here:
            for sent in self._due(number):
                self._sums[number].numpy()[sent.positions] += sent.values
        return [self._own(number) if self.present[number] else offered[number] for number in range(self.count)]

    def _sent_by(self, number: int, theta: Weights, live: int) -> SentUpdate:
        """Makes a replica's update, and keeps what it has no room for."""
        unsent, away = self._unsent[number], self._flat(theta) - self._sums[number]
        parts, deltas = (list(torch.split(each, list(self.layout.sizes))) for each in (unsent, away))
        blob = encode_update_fast(self.layout, parts, deltas, decay=1.0, kept=self._kept)
        starts = np.cumsum([0, *self.layout.sizes[:-1]])
        update = decode_update(blob, self.layout)
        positions = np.concatenate([start + part.positions for start, part in zip(starts, update, strict=True)])
        values = np.concatenate([part.values for part in update])
        alpha = min(1.0, self._pace / live**0.5)
        return SentUpdate(number, self._steps, positions, np.float32(alpha) * values, len(blob))

    def _flat(self, weights: Weights) -> torch.Tensor:
        return torch.cat([weights[name].detach().reshape(-1) for name in self.layout.names])

    def _own(self, number: int) -> Weights:
        """Returns the weights that a replica goes on from."""
        parts = zip(self.layout.tensors, torch.split(self._sums[number], list(self.layout.sizes)), strict=True)
        return {name: part.view(shape).clone() for (name, shape), part in parts}

    def _post(self, sent: SentUpdate) -> None:
        for receiver in range(self.count):
            due = self._steps
            if receiver != sent.sender:
                due += self.random.randint(0, self._latest) if self._latest else 0
                if self._lost and self.random.random() < self._lost:
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
