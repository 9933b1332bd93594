"""Opens ports by UPnP: one search by multicast, and then questions by HTTP to the default gateway alone."""

from __future__ import annotations

import socket
from collections import Counter
from random import Random
from typing import Final

import anyio
from anyio.abc import SocketAttribute, UDPSocket

from protocol.errors import MalformedError, ProtocolError, StarlingError, UnreachableError
from swarm.hosts.routers.default_gateway import Gateway
from swarm.hosts.routers.http_exchange import exchange
from swarm.hosts.routers.upnp_messages import (
    PERMANENT_LEASES_ONLY,
    PORT_IS_TAKEN,
    ControlPoint,
    RouterUrl,
    UpnpRefusedError,
    action,
    external_ip,
    read_action_answer,
    read_description,
    read_search_answer,
    search_question,
)
from swarm.router import OpenedPort

SEARCH_AT: Final = ("239.255.255.250", 1900)
SEARCH_SECONDS: Final = 2.5  # routers wait for up to ``MX``, two seconds
SEARCHES: Final = 2
HOPS: Final = 2
DATAGRAMS: Final = 64  # read after one search, from everybody
PORTS_TRIED: Final = 4
OTHER_PORTS: Final = (10_000, 60_000)
DESCRIPTION: Final = "starling"
PERMANENT_SECONDS: Final = 2 * 3600.0  # a permanent lease is renewed as if it had this many


class UpnpRouter:
    """``rubbish`` counts by reason what was not understood. ``search_at`` is another address in tests."""

    def __init__(self, rubbish: Counter[str], random: Random, *, search_at: tuple[str, int] = SEARCH_AT) -> None:
        self._rubbish = rubbish
        self._random = random
        self._search_at = search_at
        self._point: ControlPoint | None = None  # that opened a port

    async def open(self, gateway: Gateway, internal_port: int, wanted_port: int, lease_seconds: int) -> OpenedPort:
        """Raises ``UnreachableError`` if no router answers, ``RefusedError``, ``ProtocolError``, ``DeadlineError``."""
        if self._point is not None and self._point.url.ip == gateway.ip:
            try:
                return await self._open_at(self._point, gateway, internal_port, wanted_port, lease_seconds)
            except StarlingError as error:  # it may have moved
                self._rubbish[error.reason] += 1
                self._point = None
        failure: StarlingError = UnreachableError("the router describes no service")
        for point in await self._describe(await self._search(gateway)):
            try:
                opened = await self._open_at(point, gateway, internal_port, wanted_port, lease_seconds)
            except StarlingError as error:
                self._rubbish[error.reason] += 1
                failure = error
            else:
                self._point = point
                return opened
        raise failure

    async def close(self, opened: OpenedPort) -> None:
        if self._point is not None:
            wanted = {"NewRemoteHost": "", "NewExternalPort": str(opened.external_port), "NewProtocol": "TCP"}
            await self._act(self._point, "DeletePortMapping", wanted)

    async def _search(self, gateway: Gateway) -> RouterUrl:
        """Returns where the gateway's description is; answers of anybody else are not read."""
        try:
            async with await anyio.create_udp_socket(socket.AF_INET, local_host=gateway.own_ip) as udp:
                raw = udp.extra(SocketAttribute.raw_socket)
                raw.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, HOPS)
                raw.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(gateway.own_ip))
                for _ in range(SEARCHES):
                    await udp.sendto(search_question(*self._search_at), *self._search_at)
                    with anyio.move_on_after(SEARCH_SECONDS):
                        return await self._listen(udp, gateway)
        except (OSError, anyio.BrokenResourceError) as error:
            raise UnreachableError(f"no search by UPnP: {error}") from error
        raise UnreachableError("the router does not answer by UPnP")

    async def _listen(self, udp: UDPSocket, gateway: Gateway) -> RouterUrl:
        for _ in range(DATAGRAMS):
            datagram, (ip, _port) = await udp.receive()
            if ip != gateway.ip:
                continue
            try:
                return read_search_answer(datagram, gateway.ip)
            except ProtocolError as error:
                self._rubbish[error.reason] += 1
        raise MalformedError(f"{DATAGRAMS} answers by UPnP, and none that is one")

    async def _describe(self, at: RouterUrl) -> list[ControlPoint]:
        status, body = await exchange(at, "GET")
        if status != 200:
            raise UnreachableError(f"the router gives no description by UPnP: HTTP status {status}")
        return read_description(body, at)

    async def _open_at(
        self, point: ControlPoint, gateway: Gateway, internal_port: int, wanted_port: int, lease_seconds: int
    ) -> OpenedPort:
        its_ip = external_ip(await self._act(point, "GetExternalIPAddress", {}))
        lease = lease_seconds
        ports = [wanted_port or internal_port, *(self._random.randrange(*OTHER_PORTS) for _ in range(PORTS_TRIED - 1))]
        while True:
            try:
                await self._add(point, gateway.own_ip, ports[0], internal_port, lease)
            except UpnpRefusedError as refusal:
                if refusal.code == PERMANENT_LEASES_ONLY and lease:
                    lease = 0
                elif refusal.code == PORT_IS_TAKEN and len(ports) > 1:
                    ports.pop(0)
                else:
                    raise
            else:
                kept = float(lease or PERMANENT_SECONDS)
                return OpenedPort("UPnP", its_ip, ports[0], gateway.own_ip, internal_port, kept)

    async def _add(self, point: ControlPoint, own_ip: str, port: int, internal_port: int, lease_seconds: int) -> None:
        arguments = {
            "NewRemoteHost": "", "NewExternalPort": str(port), "NewProtocol": "TCP",
            "NewInternalPort": str(internal_port), "NewInternalClient": own_ip, "NewEnabled": "1",
            "NewPortMappingDescription": DESCRIPTION, "NewLeaseDuration": str(lease_seconds),
        }  # fmt: skip
        await self._act(point, "AddPortMapping", arguments)

    async def _act(self, point: ControlPoint, name: str, arguments: dict[str, str]) -> dict[str, str]:
        headers = {"SOAPAction": f'"{point.service}#{name}"'}
        status, body = await exchange(point.url, "POST", headers, action(point.service, name, arguments))
        return read_action_answer(status, body)
