"""Names and provider records of the simulated network: every host keeps the records of all that it reaches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import anyio

from protocol.errors import UnreachableError
from swarm.deadlines import deadline
from swarm.host import Address, PeerId
from swarm.hosts.simulated.conditions import NetworkConditions
from swarm.hosts.simulated.simulated_connections import SimulatedConnections


class RecordKeeper(Protocol):
    """A host that keeps provider records."""

    dht: SimulatedDht


class SimulatedDht:
    """That of the host ``ourselves``. ``hosts`` are all hosts of the network by peer id."""

    def __init__(
        self,
        ourselves: PeerId,
        connections: SimulatedConnections,
        hosts: Mapping[PeerId, RecordKeeper],
        conditions: NetworkConditions,
    ) -> None:
        self.records: defaultdict[bytes, dict[PeerId, Address]] = defaultdict(dict)
        self._ourselves = ourselves
        self._connections = connections
        self._hosts = hosts
        self._conditions = conditions

    async def resolve(self, name: Address, deadline_seconds: float) -> Sequence[Address]:
        with deadline(deadline_seconds, f"looking up {name}"):
            await self._ask()
        if not self._conditions.names.get(name):
            raise UnreachableError(f"{name} leads to no address of a peer")
        return list(self._conditions.names[name])

    async def provide(self, key: bytes, deadline_seconds: float) -> None:
        with deadline(deadline_seconds, f"providing {key.hex()[:16]}"):
            await self._ask()
            for peer in self._connections.reached():
                self._hosts[peer].dht.records[key][self._ourselves] = self._connections.address

    async def find_providers(self, key: bytes, limit: int, deadline_seconds: float) -> Sequence[Address]:
        found: dict[PeerId, Address] = {}
        with deadline(deadline_seconds, f"looking for providers of {key.hex()[:16]}"):
            await self._ask()
            for peer in self._connections.reached():
                found.update(self._hosts[peer].dht.records[key])
                if len(found) > limit:  # one of them may be our own
                    break
        found.pop(self._ourselves, None)
        return list(found.values())[:limit]

    async def _ask(self) -> None:
        """Takes two hops there and back: as long as one iterative look-up in a small network."""
        await anyio.sleep(4 * max(self._conditions.delay_seconds))
