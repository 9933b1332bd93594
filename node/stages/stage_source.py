"""Where an owner finds machines that offer to hold layers: at the swarm process, as donors are found."""

from __future__ import annotations

from node.engines.donors.donor_source import DonorSource
from node.stages.link import StageFacts, WaitingStage
from node.stages.remote_stage import RemoteStage, StageExpected


class LentStages:
    """``StageSource`` of donors who got terms with layers."""

    def __init__(self, donors: DonorSource, expected: StageExpected) -> None:
        self._donors, self._expected = donors, expected

    def waiting(self) -> list[WaitingStage]:
        return [WaitingStage(each.peer, each.name) for each in self._donors.waiting()]

    def use(self, peer: str) -> tuple[RemoteStage, StageFacts]:
        link = RemoteStage(self._donors.use(peer), self._expected)
        return link, link.facts
