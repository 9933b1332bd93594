"""Where an owner finds machines that offer to hold layers: at the swarm process, as donors are found."""

from __future__ import annotations

from typing import Protocol

from node.engines.donors.donor_source import DonorSource, WaitingDonor
from node.stages.link import CountedLink, StageFacts
from node.stages.remote_stage import RemoteStage, StageExpected


class StageSource(Protocol):
    """Any thread may call it."""

    def waiting(self) -> list[WaitingDonor]:
        """Returns the machines that wait to be used; quickly, and none where they cannot be found out."""

    def use(self, peer: str) -> tuple[CountedLink, StageFacts]:
        """Connects to one that waits. Raises ``TransportError`` or ``StageLostError``."""


class LentStages:
    """``StageSource`` of donors who got terms with layers."""

    def __init__(self, donors: DonorSource, expected: StageExpected) -> None:
        self._donors, self._expected = donors, expected

    def waiting(self) -> list[WaitingDonor]:
        return self._donors.waiting()

    def use(self, peer: str) -> tuple[RemoteStage, StageFacts]:
        link = RemoteStage(self._donors.use(peer), self._expected)
        return link, link.facts
