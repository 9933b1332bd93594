"""The interface of the router before this node, which may open a port. ``swarm.hosts.routers`` has the real one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OpenedPort:
    """A TCP port of the router that leads to this node, as the router says. Nobody has dialled it: ``dial_back`` shows
    whether the port is reached from outside."""

    method: str  # "PCP", "NAT-PMP" or "UPnP"
    external_ip: str  # IPv4
    external_port: int
    internal_ip: str
    internal_port: int
    lease_seconds: float  # for which the router keeps it
    router_restarted: bool = False  # since it was asked last

    def __str__(self) -> str:
        return f"TCP port {self.external_port} ({self.method})"


class Router(Protocol):
    """Opens ports. Every call ends within half a minute."""

    async def open(self, listening: Mapping[str, int], *, wanted_port: int, lease_seconds: int) -> OpenedPort:
        """Opens a port, or renews it, before the port at which this node listens on its address towards the router.

        ``listening`` has that port by address. ``wanted_port``, 0 for none, is asked for and need not be given. Raises
        ``UnreachableError`` if no router answers, ``RefusedError``, ``ProtocolError``, ``DeadlineError``.
        """
        ...

    async def close(self, opened: OpenedPort) -> None:
        """Gives a port back. Raises as ``open`` does."""
        ...
