"""The policy of an owner: all of what is trained, and the base weights of its own layers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from node.fit.stages.schedule import OwnerOrder
from node.learner.objective.forward import Network
from node.policy.policy import Policy
from node.stages.decoder import StagedDecoder
from node.stages.network import StagedNetwork
from node.stages.stages import Stages


@dataclass(frozen=True, eq=False)
class StagedPolicy(Policy):
    """A policy whose layers from ``own_layers`` on are on other machines."""

    own_layers: int = field(kw_only=True)
    stages: Stages = field(kw_only=True)
    order: OwnerOrder = field(kw_only=True)  # of micro-batches that are under way
    batches: int = field(kw_only=True)  # of rows that are sampled side by side

    @classmethod
    def of(cls, policy: Policy, own_layers: int, stages: Stages, order: OwnerOrder, batches: int = 1) -> StagedPolicy:
        """``policy`` holds its first ``own_layers``, with what comes before and after the layers, and all factors."""
        return cls(
            **{each.name: getattr(policy, each.name) for each in fields(Policy)},
            own_layers=own_layers,
            stages=stages,
            order=order,
            batches=batches,
        )

    def decoder(self) -> StagedDecoder:
        return StagedDecoder(self.base, self.own_layers, self.stages, self.batches)

    def separate(self) -> Policy:
        raise AssertionError("an owner of some layers has no second copy: config refuses what would need one")


def network_of(policy: Policy) -> Network:
    """Returns the network that the learner's pass runs for ``policy``."""
    whole = Network.of(policy.model, policy.tokens.vocabulary)
    if not isinstance(policy, StagedPolicy):
        return whole
    return StagedNetwork.around(whole, policy.own_layers, policy.stages, policy.order)
