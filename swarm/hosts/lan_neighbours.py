"""The hosts on the local network that one host hears, where its owner wants that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from swarm.host import Address, LanSwarm

if TYPE_CHECKING:
    from swarm.hosts.lan import LanDiscovery


class LanNeighbours:
    """Nothing is sent, heard or loaded unless ``wanted``. ``swarm`` is the open swarm to name to others."""

    def __init__(self, *, wanted: bool, swarm: LanSwarm | None = None) -> None:
        self._wanted, self._swarm = wanted, swarm
        self._discovery: LanDiscovery | None = None

    @asynccontextmanager
    async def discovering(self, peer_id: str, addresses: Sequence[Address]) -> AsyncIterator[None]:
        """Announces a host from entry to exit at those of its ``addresses`` that the local network can dial."""
        if not self._wanted:
            yield
            return
        from swarm.hosts.lan import LanDiscovery  # zeroconf takes 5 MB, which most servers need not pay

        there = [a for a in addresses if a.startswith("/ip4/") and not is_loopback(a) and "/p2p-circuit" not in a]
        discovery = LanDiscovery(peer_id, there, self._swarm)
        await anyio.to_thread.run_sync(discovery.start)
        self._discovery = discovery
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(discovery.stop)

    def heard(self) -> Sequence[Address]:
        return self._discovery.heard() if self._discovery is not None else []


def is_loopback(address: Address) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))
