"""What a learner offers to the peers of its family, as a client hands it to the swarm process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.streams.averaging_messages import Offer
from protocol.weights.tensor_layout import TensorLayout
from swarm import api


@dataclass(frozen=True, slots=True, eq=False)
class WeightsOffer:
    """Weights of ours, encoded, and what a partner has to agree with."""

    content: bytes | Sequence[bytes | memoryview]  # a blob, whole or in parts
    family: bytes
    layout: TensorLayout
    encoding: str
    step: int  # outer steps before it
    known: api.KnownPartners

    def request(self, blob: bytes, size: int, deadline_seconds: float) -> api.Average:
        """Returns the request that offers the content once it is in the store as ``blob``."""
        offer = Offer(self.family, self.layout.digest, self.encoding, self.step, blob, size)
        return api.Average(offer, self.layout.tensors, deadline_seconds, self.known)
