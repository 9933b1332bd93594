"""One node of the simulated swarm: the swarm's own service, and what it remembers of a swarm that was there before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

import anyio
import msgspec

from protocol.messages import Heartbeat
from protocol.weights.tensor_layout import TensorLayout
from swarm.announcements.gossip import GossipRefusal, SenderLimits, _Sender
from swarm.announcements.pacing import ADVERTS_AT_ONCE, allowance
from swarm.announcements.sender_slots import RESERVE
from swarm.averaging.weights_difference import Difference, measure_difference
from swarm.hosts.simulated.network import SimulatedHost
from swarm.participant import Emit
from swarm.peers.claimed_addresses import claims_of
from swarm.service import SwarmService
from swarm.settings import ServiceSettings

EPOCH: Final = 1_700_000_000.0
HEARTBEAT_SECONDS: Final = 5.0  # as in the settings of a service
FAMILY: Final = bytes([1]) * 16
SWARM_ID: Final = "5c" * 16


@dataclass(eq=False)
class Node:
    service: SwarmService
    host: SimulatedHost
    is_sybil: bool
    is_of_start: bool
    began_seconds: float
    task: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    fetched: Counter[bool] = field(default_factory=Counter)
    cursor: int = 0

    def is_there_since(self, seconds: float) -> bool:
        return self.is_of_start or self.began_seconds < seconds

    def announcements(self) -> tuple[int, int]:
        """Returns how many it accepted, and how many it refused for the rate of their sender."""
        gossip = self.service.gossip
        return gossip.accepted.total(), gossip.rejected[GossipRefusal.RATE]


def new_service(
    host: SimulatedHost,
    name: str,
    home: Path,
    known: Sequence[SimulatedHost],
    wall_clock: Callable[[], float],
    *,
    emit: Emit = lambda event, fields: None,
) -> SwarmService:
    """Makes the service of a node that remembers the addresses of ``known``, or what it has on its disk."""
    if not home.exists():
        home.mkdir()
        addresses = [other.addresses()[0] for other in known if other is not host]
        (home / "peers.json").write_bytes(msgspec.json.encode(addresses))
    settings = ServiceSettings(home=str(home), swarm_name="scale", swarm_id=SWARM_ID, name=name, lan_discovery=False)
    return SwarmService(
        host, host.key, settings, wall_clock=wall_clock, random=Random(name), emit=emit, measure=measured_at_once
    )


async def measured_at_once(encoding: str, theirs: Path, ours: Path, layout: TensorLayout) -> Difference:
    """Measures without a thread, for which virtual time would not wait."""
    return measure_difference(encoding, theirs, ours, layout)


def heartbeat(name: str) -> Heartbeat:
    return Heartbeat(name, "scale", "wren", FAMILY, FAMILY, 1, 1, "learning", 100.0, 1, 1, ())


class SwarmBefore:
    """What the nodes of the start have heard of each other, and have used up of what they may send at once."""

    def __init__(self, hosts: Sequence[SimulatedHost], sybils: set[str], random: Random) -> None:
        self._hosts, self._sybils, self._random = hosts, sybils, random
        self._said: dict[str, Heartbeat] = {}
        self._spent: dict[str, _Sender] = {}

    def remember(self, service: SwarmService, own: SimulatedHost, now_seconds: float) -> None:
        """Lets a node have heard all others, their adverts too, and have sent as many adverts as it may at once."""
        for other in self._hosts:
            if other is not own:
                notes = service._table.of(other.peer_id)
                notes.heartbeat, notes.heartbeat_at_seconds = self._heartbeat_of(other), now_seconds
                notes.advertised_at_seconds = now_seconds
                if other.peer_id in self._sybils:
                    service.gossip._limits._senders[other.peer_id] = self._spent_by(other.peer_id, now_seconds)
        service._pacing._adverts._bucket.take(ADVERTS_AT_ONCE - self._random.random(), now_seconds=now_seconds)

    def _heartbeat_of(self, other: SimulatedHost) -> Heartbeat:
        if other.peer_id not in self._said:
            claims = claims_of(other.addresses(), other.peer_id)
            self._said[other.peer_id] = msgspec.structs.replace(heartbeat("before"), addresses=claims)
        return self._said[other.peer_id]

    def _spent_by(self, sybil: str, now_seconds: float) -> _Sender:
        """Returns what a node counts of a sybil which has sent as much as it may at once: the same at every node."""
        if sybil not in self._spent:
            limits, may = SenderLimits(), allowance(len(self._hosts), HEARTBEAT_SECONDS)
            for number in range(may.messages_a_slot + RESERVE):
                limits.refusal(
                    sybil, number, 0, now_seconds, signed_seconds=now_seconds, forwarder=sybil, allowance=may
                )
            self._spent[sybil] = limits._senders[sybil]
        of_one = self._spent[sybil]
        return replace(
            of_one,
            slots=copy(of_one.slots),
            messages=copy(of_one.messages),
            message_bytes=copy(of_one.message_bytes),
            replay=copy(of_one.replay),
        )
