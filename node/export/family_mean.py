"""The mean of a family's replicas: this node's weights and the newest states that peers of its family announce.

    θ̄ = (θ_own + Σ_i θ_i) / (1 + n),   over n announced states with different weights

Replicas of a family are never identical; between two averagings each goes its own way, and the mean of close ones is as
a rule at least as good as each. Announced states are rounded to bf16 and verified by hash. A replica further from ours
than ``MAX_DISTANCE`` of our weights' norm has left the family's basin, or is hostile, and is left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from node.export.export_result import Progress
from node.policy.weight_layout import layout_of
from node.quantities import counted, size
from node.state_sync.publishing import family_peers
from node.state_sync.rebuild import BadBlobError, rebuild
from node.state_sync.state_choice import AnnouncedState, Chain, StateRequirements, choose_state
from protocol.errors import StorageError, TransportError
from protocol.weights.dense_weights import dense_bytes
from protocol.weights.tensor_layout import TensorLayout
from swarm.api import Fetched, PeerStatus, SeenState, Wanted

MAX_REPLICAS: Final = 8  # of peers: each is fetched whole
MAX_ATTEMPTS: Final = 16  # of those fetched, the ones left out included
MAX_DISTANCE: Final = 0.5  # ‖θ_i − θ_own‖ / ‖θ_own‖
FETCH_SECONDS: Final = 3600.0


class MeanSwarm(Protocol):
    """The part of ``swarm.client.SwarmClient`` that the mean uses."""

    def peers(self) -> Sequence[PeerStatus]: ...
    def states(self, family: bytes) -> Sequence[SeenState]: ...
    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> Sequence[Fetched]: ...


@dataclass(frozen=True, slots=True, eq=False)
class MeanOfFamily:
    weights: Mapping[str, Tensor]  # float32
    replicas: int  # ours included
    because: str  # which they are, or why there is only ours, in words
    warnings: tuple[str, ...]  # replicas left out


def mean_of_family(
    swarm: MeanSwarm, family: bytes, ours: Mapping[str, Tensor], *, room_bytes: int, progress: Progress
) -> MeanOfFamily:
    """Returns the mean of ``ours`` (float32) and of the states announced now; ``ours`` alone where there are none.

    ``room_bytes`` is the most that the blobs of one state may take. Nothing waits for further announcements.
    """
    layout = layout_of(ours)
    needs = StateRequirements(layout.digest, (), dense_bytes(layout), room_bytes)
    try:
        seen = swarm.states(family)
        there = family_peers(swarm.peers(), family)
    except TransportError as error:
        return MeanOfFamily(ours, 1, f"only this node's replica: no node answers in its data directory ({error})", ())
    total = {name: tensor.clone() for name, tensor in ours.items()}
    used: set[Chain] = set()
    weights_used: set[bytes] = set()
    warnings: list[str] = []
    because = ""
    for _ in range(MAX_ATTEMPTS):
        choice = choose_state(time.time(), seen, needs, used)
        if choice.chosen is None or len(weights_used) == MAX_REPLICAS:
            because = because or choice.because
            break
        used.add(choice.chosen.advert.blobs)
        if choice.chosen.advert.target in weights_used:
            continue  # the same weights by another chain
        because = _add(swarm, choice.chosen, layout, ours, total, progress)
        if because:
            warnings.append(f"a replica is left out: {because}")
        else:
            weights_used.add(choice.chosen.advert.target)
    replicas = 1 + len(weights_used)
    if replicas == 1:
        peers = (
            f", though {counted(there, 'peer')} of its family {'is' if there == 1 else 'are'} there" if there else ""
        )
        return MeanOfFamily(ours, 1, f"only this node's replica: {because}{peers}", tuple(warnings))
    mean = {name: tensor.div_(replicas) for name, tensor in total.items()}
    said = f"the mean of this node's replica and {counted(replicas - 1, 'replica')} that its peers announced"
    return MeanOfFamily(mean, replicas, said, tuple(warnings))


def _add(
    swarm: MeanSwarm,
    state: AnnouncedState,
    layout: TensorLayout,
    ours: Mapping[str, Tensor],
    total: Mapping[str, Tensor],
    progress: Progress,
) -> str:
    """Adds a peer's weights to ``total`` and returns "", or returns why it has not."""
    progress.step(f"fetching a replica of the family ({size(state.size_bytes)})")
    try:
        fetched = swarm.fetch(state.wanted, deadline_seconds=FETCH_SECONDS)
    except (TransportError, StorageError) as error:
        return f"it could not be fetched: {error}"
    missing = sum(not each.is_here for each in fetched)
    if missing:
        return f"{missing} of its {len(fetched)} blobs could not be fetched"
    try:
        theirs = dict(zip(layout.names, rebuild(state.advert, fetched, layout), strict=True))
    except (StorageError, BadBlobError) as error:
        return str(error)
    distance = _distance(ours, theirs)
    if not distance <= MAX_DISTANCE:
        return f"it is {distance:.0%} of our weights' norm away from ours, the limit is {MAX_DISTANCE:.0%}"
    for name, tensor in theirs.items():
        total[name].add_(tensor.float())
    return ""


def _distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Returns ‖theirs − ours‖ / ‖ours‖."""
    apart = sum(float(torch.sum((theirs[name].float() - tensor).double() ** 2)) for name, tensor in ours.items())
    norm = sum(float(torch.sum(tensor.double() ** 2)) for tensor in ours.values())
    return float((apart / norm) ** 0.5) if norm > 0 else float("inf")
