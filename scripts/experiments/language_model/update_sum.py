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

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from node.averaging.noloco import Weights
from node.kernels.sparse_update_kernels import encode_update_fast
from protocol.weights.sparse_update import decode_update
from scripts.experiments.language_model.averaging_liars import LIAR
from scripts.experiments.language_model.averaging_rules import ReplicaRule, pairs_among
from swarm.averaging.norm_history import NormHistory

MEND_STEPS: Final = 10  # outer steps until a lost update is missed, and fetched
LIES: Final[Mapping[str, float]] = {"large": 10.0, "huge": 100.0, "negated": -1.0}
STEPS_BACK: Final = 3


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
        parts, deltas = (list(torch.split(each, list(self.layout.sizes))) for each in (unsent, away))
        blob = encode_update_fast(self.layout, parts, deltas, decay=1.0, kept=self._kept)
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
        parts = zip(self.layout.tensors, torch.split(self.sums[number], list(self.layout.sizes)), strict=True)
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


class SumWithLiar(UpdateSum):
    """Replica ``LIAR`` learns as all others do; what it sends to all is its update times ``LIES[lie]``.

    With ``bounded`` each replica judges every update that it hears, its own among them, by the lengths of all that it
    has heard of the last ``STEPS_BACK`` outer steps of their senders: one longer than their median and deviation is
    scaled down to that (``swarm.averaging.norm_history``). Replicas that have heard the same at the same time come to
    the same; where updates are late they do not, and add unequal terms. With ``stride`` a random pair of replicas
    averages one of so many elements of φ after each outer step, in bf16.
    """

    def __init__(
        self, weights: Weights, count: int, random: Random, *, lie: str | None, bounded: bool, stride: int = 0,
        **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(weights, count, random, **settings)
        self._lie, self._bounded, self._stride = LIES[lie] if lie is not None else 1.0, bounded, stride
        if lie is not None:
            self.honest = [number for number in range(count) if number != LIAR]
        self._norms: list[defaultdict[int, list[float]]] = [defaultdict(list) for _ in range(count)]  # by step

    def send(self, number: int, theta: Weights, live: int) -> SentUpdate:
        sent = super().send(number, theta, live)
        return replace(sent, values=np.float32(self._lie) * sent.values) if number == LIAR else sent

    def hear(self, number: int, updates: Sequence[SentUpdate]) -> None:
        for sent in updates:
            self._norms[number][sent.step].append(sent.norm)
        for sent in updates:
            self.add(number, sent, self._scale(number, sent) if self._bounded else 1.0)

    def _scale(self, number: int, sent: SentUpdate) -> float:
        known = self._norms[number]
        norms = sorted(norm for step in range(sent.step - STEPS_BACK, sent.step + 1) for norm in known.get(step, ()))
        history = NormHistory(tuple(norms))
        longest = history.median + history.deviation
        return 1.0 if sent.norm <= longest else longest / sent.norm

    def draw_together(self, here: Sequence[int]) -> None:
        for one, other in pairs_among(here, self.random) if self._stride else ():
            part = slice(self.random.randrange(self._stride), None, self._stride)
            ours, theirs = self.sums[one][part], self.sums[other][part]
            mean = (ours.bfloat16().float() + theirs.bfloat16().float()) / 2
            for number in (one, other):
                self.sums[number][part] = mean
                self.count_received(2 * len(mean))
