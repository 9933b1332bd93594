"""Rules by which replicas combine their weights every H inner steps: those that ``averaging.py`` compares.

``ReplicaRule.outer`` receives what every replica offers, θ after its inner steps, and returns every replica's new φ.
Formulas and codecs are the node's own (``node.averaging``, ``protocol``); a rule adds who meets whom. All that passes
between two replicas is encoded as on the wire, and its bytes are counted. ``DiLoCo`` is a baseline, which a node lacks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Final

from node.averaging import compressed, noloco
from node.averaging.compressed import CompressedConstants
from node.averaging.noloco import NolocoConstants, Weights
from node.averaging.rules import bf16_bits, from_bf16_bits
from node.policy.weight_layout import layout_of
from protocol.weights.compressed_weights import decode_compressed
from protocol.weights.dense_weights import encode_dense, open_dense

DILOCO: Final = NolocoConstants(outer_rate=0.7, momentum=0.3)  # with one φ, γ has no effect
NOLOCO: Final = NolocoConstants()


def random_pairs(count: int, random: Random) -> list[tuple[int, int]]:
    return pairs_among(range(count), random)


def pairs_among(numbers: Sequence[int], random: Random) -> list[tuple[int, int]]:
    """Returns random pairs; of an odd number of replicas one has no partner."""
    order = random.sample(numbers, len(numbers))
    return list(zip(order[::2], order[1::2], strict=False))


class ReplicaRule(ABC):
    """One rule among replicas that begin with equal weights. ``received_bytes`` is the mean received by a replica;
    ``honest`` are the numbers of replicas whose loss counts, ``verdicts`` counts what they did with offers, ``present``
    says who takes part: the caller changes it between outer steps where replicas leave and come."""

    def __init__(self, weights: Weights, count: int, random: Random) -> None:
        self.count, self.random = count, random
        self.layout = layout_of(weights)
        self.received_bytes = 0.0
        self.honest = list(range(count))
        self.present = [True] * count
        self.verdicts: defaultdict[str, float] = defaultdict(float)

    @abstractmethod
    def outer(self, offered: Sequence[Weights]) -> list[Weights]:
        """Returns every replica's new φ."""

    def count_received(self, replica_bytes: int) -> None:
        """Counts bytes that one replica received."""
        self.received_bytes += replica_bytes / self.count

    def across(self, vector: Weights) -> Weights:
        """Returns ``vector`` as one partner receives it, whole and in bf16, and counts its bytes."""
        blob = encode_dense(self.layout, bf16_bits(vector, self.layout))
        self.count_received(len(blob))
        return from_bf16_bits(open_dense(blob, self.layout), self.layout)


class Alone(ReplicaRule):
    def outer(self, offered: Sequence[Weights]) -> list[Weights]:
        return list(offered)


class DiLoCo(ReplicaRule):
    """The mean pseudo-gradient θ_j - φ of all, by gossip among a fixed set: replica i averages with i XOR 1, then with
    i XOR 2, i XOR 4, …, in bf16, both sides the same two rounded vectors. After log₂ n such exchanges all hold the
    same mean, to the bit, and so one φ: the result of an all-reduce, which likewise needs all n."""

    def __init__(self, weights: Weights, count: int, random: Random, constants: NolocoConstants = DILOCO) -> None:
        if count & (count - 1):
            raise ValueError(f"{count} replicas; this gossip is among a power of two")
        super().__init__(weights, count, random)
        self._state, self._constants = noloco.begin(weights), constants

    def outer(self, offered: Sequence[Weights]) -> list[Weights]:
        outer = self._state.outer
        means: list[Weights] = [{name: theta[name] - outer[name] for name in outer} for theta in offered]
        for hop in range(self.count.bit_length() - 1):
            sent = [self.across(mean) for mean in means]
            means = [
                {name: (sent[i][name] + sent[i ^ 1 << hop][name]) / 2 for name in outer} for i in range(self.count)
            ]
        moved = [{name: outer[name] + mean[name] for name in outer} for mean in means]
        self._state = noloco.outer_step(self._state, moved[:1], self._constants)
        return [self._state.outer] * self.count


class NoLoCo(ReplicaRule):
    """Random pairs that exchange their weights in bf16. A replica without a partner goes on from its own weights; one
    that was away begins from the weights of one that was not, as ``starling up --from-peers`` does."""

    def __init__(self, weights: Weights, count: int, random: Random) -> None:
        super().__init__(weights, count, random)
        self._states = [noloco.begin(weights) for _ in range(count)]
        self._periods = [1] * count  # since the last outer step
        self._were_present = list(self.present)

    def outer(self, offered: Sequence[Weights]) -> list[Weights]:
        here = [number for number in range(self.count) if self.present[number]]
        new, sent = list(offered), {number: self.across(offered[number]) for number in here}
        stayed = [number for number in here if self._were_present[number]]
        for own in here:
            if not self._were_present[own] and stayed:
                offered = [*offered]
                offered[own] = sent[self.random.choice(stayed)]
                self._states[own], self._periods[own], new[own] = noloco.begin(offered[own]), 1, offered[own]
        for i, j in pairs_among(here, self.random):
            for own, other in ((i, j), (j, i)):
                afresh = self._periods[own] > NOLOCO.stretch
                start = noloco.begin(offered[own]) if afresh else self._states[own]
                self._states[own] = noloco.outer_step(start, [offered[own], sent[other]], NOLOCO)
                self._periods[own], new[own] = 0, self._states[own].outer
        self._periods = [periods + 1 for periods in self._periods]
        self._were_present = list(self.present)
        return new


class CompressedPairs(ReplicaRule):
    """Random pairs, ``node.averaging.compressed``; each replica draws its own slice."""

    def __init__(self, weights: Weights, count: int, random: Random, constants: CompressedConstants) -> None:
        super().__init__(weights, count, random)
        self._constants = constants
        self._states = [compressed.begin(weights) for _ in range(count)]

    def outer(self, offered: Sequence[Weights]) -> list[Weights]:
        sent = [
            compressed.make_offer(state, weights, self.random.randrange(self._constants.stride), self._constants)
            for state, weights in zip(self._states, offered, strict=True)
        ]
        for pair in random_pairs(self.count, self.random):
            for own, other in (pair, pair[::-1]):
                theirs = decode_compressed(sent[other].blob, self.layout)
                self._states[own], _ = compressed.outer_step(self._states[own], sent[own], theirs, self._constants)
                self.count_received(len(sent[other].blob))
        return [compressed.weights_of(state, self._constants) for state in self._states]
