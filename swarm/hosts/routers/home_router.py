"""The default gateway as ``swarm.router.Router``: asked by PCP, then by NAT-PMP, then by UPnP.

The first that opened a port is asked first the next time. Whatever a router sends is bounded, and read only if it comes
from the router and answers the question; ``rubbish`` counts the rest by reason.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final, TypeVar

import anyio

from protocol.errors import DeadlineError, MalformedError, ProtocolError, StarlingError, UnreachableError
from swarm.hosts.routers import pcp_messages as pcp
from swarm.hosts.routers.default_gateway import Gateway, default_gateway
from swarm.hosts.routers.upnp import SEARCH_AT, UpnpRouter
from swarm.router import OpenedPort

Answer = TypeVar("Answer")

WAITS_SECONDS: Final = (0.25, 0.5, 1.0, 2.0)  # for an answer by UDP, before the question is sent again
DATAGRAMS: Final = 16  # read in answer to one question
OPEN_SECONDS: Final = 30.0
LONGEST_LEASE_SECONDS: Final = 24 * 3600
METHODS: Final = ("PCP", "NAT-PMP", "UPnP")


class HomeRouter:
    """The router of one node. ``find_gateway`` and the ports differ in tests."""

    def __init__(
        self,
        *,
        find_gateway: Callable[[], Awaitable[Gateway]] = default_gateway,
        udp_port: int = pcp.PORT,
        search_at: tuple[str, int] = SEARCH_AT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rubbish: Counter[str] = Counter()
        self._find_gateway = find_gateway
        self._udp_port = udp_port
        self._clock = clock
        self._nonce = secrets.token_bytes(pcp.NONCE_BYTES)  # the same for every renewal: RFC 6887, 11.1
        self._upnp = UpnpRouter(self.rubbish, Random(), search_at=search_at)
        self._worked = ""
        self._epoch: tuple[int, float] | None = None  # of the router, and when it said so

    async def open(self, listening: Mapping[str, int], *, wanted_port: int, lease_seconds: int) -> OpenedPort:
        try:
            with anyio.fail_after(OPEN_SECONDS):
                return await self._open(listening, wanted_port, lease_seconds)
        except TimeoutError as error:
            raise DeadlineError(f"the router did not open a port within {OPEN_SECONDS:g} s") from error

    async def _open(self, listening: Mapping[str, int], wanted_port: int, lease_seconds: int) -> OpenedPort:
        gateway = await self._find_gateway()
        port = listening.get(gateway.own_ip)
        if port is None:
            raise UnreachableError(f"this node does not listen on {gateway.own_ip}, which leads to {gateway.ip}")
        failures: list[StarlingError] = []
        for method in sorted(METHODS, key=lambda method: method != self._worked):
            try:
                opened = await self._open_by(method, gateway, port, wanted_port, lease_seconds)
            except StarlingError as error:
                self.rubbish[error.reason] += not _is_silence(error)
                failures.append(error)
            else:
                self._worked = method
                return opened
        answered = [each for each in failures if not _is_silence(each)]
        if not answered:
            raise UnreachableError(f"{gateway.ip} answers neither by PCP nor by NAT-PMP nor by UPnP")
        raise answered[-1]

    async def close(self, opened: OpenedPort) -> None:
        if opened.method == "UPnP":
            await self._upnp.close(opened)
            return
        gateway, port = await self._find_gateway(), opened.internal_port
        if gateway.own_ip != opened.internal_ip:
            return  # on another network by now
        if opened.method == "PCP":
            question = pcp.pcp_question(self._nonce, gateway.own_ip, port, 0, 0)
            await self._ask(gateway, question, lambda answer: pcp.read_pcp_answer(answer, self._nonce, port))
        else:
            await self._ask(gateway, pcp.pmp_question(port, 0, 0), lambda answer: pcp.read_pmp_answer(answer, port))

    async def _open_by(self, method: str, gateway: Gateway, port: int, wanted: int, lease_seconds: int) -> OpenedPort:
        if method == "UPnP":
            return await self._upnp.open(gateway, port, wanted, lease_seconds)
        if method == "PCP":
            question = pcp.pcp_question(self._nonce, gateway.own_ip, port, wanted or port, lease_seconds)
            mapped = await self._ask(gateway, question, lambda data: pcp.read_pcp_answer(data, self._nonce, port))
            external_ip = mapped.external_ip
        else:
            external_ip, _ = await self._ask(gateway, pcp.pmp_address_question(), pcp.read_pmp_address)
            question = pcp.pmp_question(port, wanted or port, lease_seconds)
            mapped = await self._ask(gateway, question, lambda data: pcp.read_pmp_answer(data, port))
        if not mapped.lease_seconds:
            raise MalformedError(f"the router opened a port by {method} for no time at all")
        lease = float(min(mapped.lease_seconds, LONGEST_LEASE_SECONDS))
        restarted = self._notes_restart(mapped.epoch_seconds)
        return OpenedPort(method, external_ip, mapped.external_port, gateway.own_ip, port, lease, restarted)

    def _notes_restart(self, epoch_seconds: int) -> bool:
        """Remembers the router's epoch; returns whether the router restarted since the last one."""
        before, now_seconds = self._epoch, self._clock()
        self._epoch = epoch_seconds, now_seconds
        return before is not None and pcp.has_restarted(epoch_seconds, before[0], now_seconds - before[1])

    async def _ask(self, gateway: Gateway, question: bytes, read: Callable[[bytes], Answer]) -> Answer:
        """Sends a question to the gateway until it is answered. Datagrams of anybody else do not arrive here."""
        try:
            async with await anyio.create_connected_udp_socket(
                gateway.ip, self._udp_port, local_host=gateway.own_ip
            ) as udp:
                left = DATAGRAMS
                for wait_seconds in WAITS_SECONDS:
                    await udp.send(question)
                    with anyio.move_on_after(wait_seconds):
                        while left:
                            datagram = await udp.receive()
                            left -= 1
                            try:
                                return read(datagram)
                            except ProtocolError as error:
                                self.rubbish[error.reason] += 1
        except (OSError, anyio.BrokenResourceError) as error:
            raise UnreachableError(f"no answer from {gateway.ip}") from error
        raise UnreachableError(f"no answer from {gateway.ip}")


def _is_silence(error: StarlingError) -> bool:
    return type(error) is UnreachableError or isinstance(error, pcp.OtherVersionError)
