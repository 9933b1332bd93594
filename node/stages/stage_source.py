"""Where an owner finds machines that offer to hold layers: at the swarm process, as donors are found."""

from __future__ import annotations

from node.engines.donors.donor_source import DonorSource
from node.stages.link import StageFacts, WaitingStage
from node.stages.remote_stage import USUAL_PATIENCE, RemoteStage, StageExpected, StagePatience


class LentStages:
    """``StageSource`` of donors who got terms with layers."""

    def __init__(
        self, donors: DonorSource, expected: StageExpected, *, patience: StagePatience = USUAL_PATIENCE
    ) -> None:
        self._donors, self._expected, self._patience = donors, expected, patience

    def waiting(self) -> list[WaitingStage]:
        return [WaitingStage(each.peer, each.name) for each in self._donors.waiting()]

    def use(self, peer: str) -> tuple[RemoteStage, StageFacts]:
        link = RemoteStage(self._donors.use(peer), self._expected, self._patience)
        return link, link.facts
