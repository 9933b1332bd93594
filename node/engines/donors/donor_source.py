"""Where a learner finds its donors: at the swarm process, which admits them and carries their streams."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from node.engines.process.channel import Channel, SocketChannel
from protocol.errors import StarlingError
from protocol.streams.lend_messages import LendTerms
from swarm.client import SwarmClient
from swarm.donors.donor_list import read_donors

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0  # for the swarm process, which waits for nobody


@dataclass(frozen=True, slots=True)
class WaitingDonor:
    peer: str
    name: str  # shown escaped


class DonorSource(Protocol):
    """Any thread may call it."""

    def waiting(self) -> list[WaitingDonor]:
        """Returns the donors that wait to be used; quickly, and none where they cannot be found out."""

    def use(self, peer: str) -> Channel:
        """Takes a waiting donor's stream. Raises ``TransportError``."""

    def drop(self, peer: str, because: str) -> None:
        """Refuses a donor for good, also after a restart."""


class SwarmDonors:
    """``DonorSource`` of the swarm process of one data directory. While the list names no donor, nothing is asked."""

    def __init__(self, donor_list: Path, swarm_socket: Path, terms: LendTerms) -> None:
        self._list, self._socket, self._terms = donor_list, swarm_socket, terms
        self._client = SwarmClient(swarm_socket, timeout_seconds=ANSWER_SECONDS)

    def waiting(self) -> list[WaitingDonor]:
        try:
            if all(each.dropped_because for each in read_donors(self._list)):
                return []
            return [WaitingDonor(each.peer, each.name) for each in self._client.donors(self._terms)]
        except StarlingError as error:
            log.warning("donors are not used now: %s", error)
            return []

    def use(self, peer: str) -> Channel:
        return SocketChannel(SwarmClient(self._socket, timeout_seconds=ANSWER_SECONDS).use_donor(peer))

    def drop(self, peer: str, because: str) -> None:
        try:
            with SwarmClient(self._socket, timeout_seconds=ANSWER_SECONDS) as client:
                client.drop_donor(peer, because)
        except StarlingError as error:
            log.error("donor %s could not be put out for good: %s", peer, error)
