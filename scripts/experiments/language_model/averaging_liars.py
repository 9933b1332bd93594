"""One liar among the replicas of ``averaging.py``, and the rules against it.

Replica ``LIAR`` learns as all others do and takes the same steps. θ is its weights, and φ is its weights after the last
exchange, in which it took a step or was refused. Instead of θ it offers

    large       θ + 10 ‖θ − φ‖ u     u a random direction, a new one each time
    huge        θ + 100 ‖θ − φ‖ u
    quiet       φ − (θ − φ)          what it learnt with the opposite sign: of ordinary length

``PairsWithLiar`` is NoLoCo in pairs by the node's own code: ``node.averaging.rules`` takes the steps,
``swarm.averaging.weights_difference`` measures what is offered, ``swarm.averaging.norm_history`` judges it, each
replica by its own history, and both of a pair take the step or neither does, as in
``swarm.averaging.weight_averaging``. Departures: a replica without a partner waits for the next exchange, where a
node would ask another peer; and no replica is banned, where a node reports each refusal. The liar refuses no offer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import Final

import torch
from torch import Tensor

from node.averaging import noloco
from node.averaging.noloco import OuterState, Weights
from node.averaging.rules import RELEASED, DenseRule, bf16_bits
from protocol.weights.dense_weights import encode_dense
from scripts.experiments.language_model.averaging_rules import ReplicaRule, random_pairs
from swarm.averaging.norm_history import FamilyPast
from swarm.averaging.weights_difference import ENCODINGS, Difference

LIAR: Final = 0
DENSE: Final = DenseRule()
Lie = Callable[[Weights, Weights, torch.Generator], dict[str, Tensor]]  # (θ, φ, generator)

# What honest replicas did with offers, as counts; the weights of accepted offers are summed.
LIES_TAKEN, LIES_REFUSED, LIES_WEIGHT = "lies taken", "lies refused", "weight of lies"
HONEST_TAKEN, HONEST_REFUSED, HONEST_WEIGHT = "honest taken", "honest refused", "weight of honest"


def astray(theta: Weights, phi: Weights, generator: torch.Generator, *, longer: float) -> dict[str, Tensor]:
    direction = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in theta.items()}
    length = longer * _norm({name: theta[name] - phi[name] for name in theta}) / _norm(direction)
    return {name: tensor + length * direction[name] for name, tensor in theta.items()}


def quiet(theta: Weights, phi: Weights, generator: torch.Generator) -> dict[str, Tensor]:
    return {name: phi[name] - (tensor - phi[name]) for name, tensor in theta.items()}


LIES: Final[Mapping[str, Lie]] = {
    "large": partial(astray, longer=10.0),
    "huge": partial(astray, longer=100.0),
    "quiet": quiet,
}


class PairsWithLiar(ReplicaRule):
    """NoLoCo in pairs. ``judged``: whether offers are refused and weighted, or all accepted with weight 1.

    Replica ``LIAR`` is honest the first ``honest_times``, and always without a ``lie``.
    """

    def __init__(
        self, weights: Weights, count: int, random: Random, *, lie: str | None, judged: bool, honest_times: int = 0
    ) -> None:
        super().__init__(weights, count, random)
        self._lie, self._honest_times = LIES[lie] if lie is not None else None, honest_times
        if lie is not None:
            self.honest = [number for number in range(count) if number != LIAR]
        self._phi = weights  # the liar's, after the last exchange
        # From a copy of ``random``, so that the pairs are those of the same seed without a liar.
        self._directions = torch.Generator().manual_seed(copy(random).getrandbits(63))
        self._judged = judged
        self._states: list[OuterState] = [noloco.begin(weights) for _ in range(count)]
        self._pasts = [FamilyPast()] * count
        self._periods = [1] * count  # since the last outer step
        self._learnt = [0.0] * count  # lengths of θ - φ at outer steps, added up

    def shown(self, offered: Sequence[Weights]) -> tuple[list[Weights], bool]:
        """Returns what every replica offers, and whether one is a lie. To be called once per exchange."""
        shown = list(offered)
        if self._lie is None:
            return shown, False
        if self._honest_times > 0:
            self._honest_times -= 1
            return shown, False
        shown[LIAR] = self._lie(offered[LIAR], self._phi, self._directions)
        return shown, True

    def outer(self, offered: Sequence[Weights]) -> list[Weights]:
        shown, lying = self.shown(offered)
        blobs = [encode_dense(self.layout, bf16_bits(each, self.layout)) for each in shown]
        new = list(offered)
        for pair in random_pairs(self.count, self.random):
            both = (pair, pair[::-1])
            norms, weights = [], []
            for own, other in both:
                self.count_received(len(blobs[other]))
                apart = ENCODINGS[DENSE.encoding].difference(
                    memoryview(blobs[other]), memoryview(blobs[own]), self.layout
                )
                norms.append(apart.norm)
                weights.append(self._weight(own, apart, self._learnt_by(own, offered[own])))
                self._note(own, lying and other == LIAR, weights[-1])
            agreed = [weight for weight in weights if weight is not None]
            if len(agreed) < len(both):
                for own in pair:
                    self._periods[own] += 1
                continue
            for (own, other), norm, weight in zip(both, norms, agreed, strict=True):
                self._learnt[own] = self._learnt_by(own, offered[own])
                new[own] = self._step(own, offered[own], blobs[other], weight)
                self._pasts[own] = self._pasts[own].after_averaging(str(other), norm)
        self._phi = new[LIAR]
        return new

    def _learnt_by(self, own: int, offered: Weights) -> float:
        phi = self._states[own].outer
        return self._learnt[own] + _norm({name: theta - phi[name] for name, theta in offered.items()})

    def _weight(self, own: int, apart: Difference, learnt: float) -> float | None:
        """Returns the weight of a partner at this distance, None for one that is refused."""
        if not self._judged or own == LIAR:
            return 1.0
        past = self._pasts[own]
        if past.outlier_because(apart.norm, apart.own_norm) is not None:
            self._pasts[own] = past.after_refusal()
            return None
        return past.weight(apart.norm, learnt)

    def _step(self, own: int, offered: Weights, theirs: bytes, weight: float) -> Weights:
        afresh = self._periods[own] > RELEASED.stretch
        offering = DENSE.offer(offered, self._states[own], afresh=afresh, random=self.random)
        state = offering.averaged(memoryview(theirs), weight).state
        assert isinstance(state, OuterState)
        self._states[own], self._periods[own] = state, 1
        return state.outer

    def _note(self, own: int, is_lie: bool, weight: float | None) -> None:
        if own == LIAR:
            return
        if weight is None:
            self.verdicts[LIES_REFUSED if is_lie else HONEST_REFUSED] += 1
            return
        self.verdicts[LIES_TAKEN if is_lie else HONEST_TAKEN] += 1
        self.verdicts[LIES_WEIGHT if is_lie else HONEST_WEIGHT] += weight


def _norm(weights: Weights) -> float:
    return float(sum(float(tensor.square().sum()) for tensor in weights.values()) ** 0.5)
