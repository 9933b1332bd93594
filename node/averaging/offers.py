"""What passes between the learner's thread and the one that looks for a partner: an offer, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from node.averaging.noloco import Weights
from node.averaging.rules import State
from swarm import api
from swarm.averaging.norm_history import FamilyPast
from swarm.averaging.weights_offer import WeightsOffer


class AveragingSwarm(Protocol):
    """The part of ``swarm.client.SwarmClient`` that averaging uses."""

    def peers(self) -> Sequence[api.PeerStatus]: ...
    def average(self, ours: WeightsOffer, *, deadline_seconds: float) -> api.AverageReply: ...
    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class OfferedWeights:
    """Our weights when the search for a partner began, in main memory."""

    round: int
    weights: Weights  # float32
    before: State | None  # after the last outer step
    afresh: bool  # the last outer step was too long ago to continue from
    random: Random
    since: Weights  # of the last outer step, or of this process's start: what was learnt is measured from there
    known: api.KnownPartners


@dataclass(frozen=True, slots=True, eq=False)
class AveragingResult:
    """The result of an offer; if ``after`` is not None, an outer step is to be applied."""

    offered: OfferedWeights
    because: str
    again_at_once: bool = False
    partner: str | None = None
    blob: bytes = b""  # of the partner's weights
    after: State | None = None
    past: FamilyPast | None = None  # of distances, with this search
    learnt: float = 0.0  # since the last outer step
    weight: float | None = None
    distance: float | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    fault: tuple[str, str] | None = None  # kind, detail
