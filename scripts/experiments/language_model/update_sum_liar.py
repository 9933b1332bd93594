"""One liar in a sum of updates (``update_sum``), and the rule against it.

Replica ``LIAR`` learns as all others do; what it sends to all is its update times ``LIES[lie]``. With ``bounded`` each
replica judges every update that it hears, its own among them, by the lengths of all that it has heard of the last
``STEPS_BACK`` outer steps of their senders: one longer than their median and deviation is scaled down to that
(``swarm.averaging.norm_history``). Replicas that have heard the same at the same time come to the same; where updates
are late they do not, and add unequal terms. With ``stride`` a random pair of replicas averages one of so many elements
of φ after each outer step, in bf16.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy as np

from node.averaging.noloco import Weights
from scripts.experiments.language_model.averaging_liars import LIAR
from scripts.experiments.language_model.averaging_rules import pairs_among
from scripts.experiments.language_model.update_sum import SentUpdate, UpdateSum
from swarm.averaging.norm_history import NormHistory

LIES: Final[Mapping[str, float]] = {"large": 10.0, "huge": 100.0, "negated": -1.0}
STEPS_BACK: Final = 3


class SumWithLiar(UpdateSum):
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
