"""Where a node can be dialled, as its heartbeats claim: what is said, what is read of it, how often it is dialled.

A swarm of hundreds of nodes knows each of them by announcements, and few by address. Claims serve to reach the sender
of an announcement, and nothing else: no node dials them only to have more peers. Each is dialled as an address of its
sender, whose key must answer there. ``ClaimDials`` bounds the dials of identities that all claim the address of
somebody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio

from protocol.errors import UnreachableError
from protocol.limits import ADDRESS_CHARACTERS, ADDRESSES_PER_HEARTBEAT
from protocol.messages import Heartbeat
from swarm.address_groups import is_public
from swarm.peers.discovery import CIRCUIT, DIALS_PER_IP, Candidate
from swarm.token_bucket import TokenBuckets

FAILURES_AT_ONCE: Final = 16.0  # dials in vain of claims at one IP address, ...
FAILURE_EVERY_SECONDS: Final = 30.0  # ... and one more each so many seconds
IPS_REMEMBERED: Final = 1024


def claims_of(addresses: Sequence[str], peer: str) -> tuple[str, ...]:
    """Returns what a heartbeat says of these addresses of ``peer``, its own id left out: a direct one and one through a
    relay where there are both, public ones first."""
    end = f"/p2p/{peer}"
    own = [a for a in addresses if a.endswith(end) and len(a) <= ADDRESS_CHARACTERS]
    own.sort(key=lambda a: (not is_public(_ip(a)), _ip(a).startswith("127.")))
    relayed = [a for a in own if CIRCUIT in a]
    direct = [a for a in own if CIRCUIT not in a]
    chosen = [*direct[:1], *relayed[:1], *direct[1:], *relayed[1:]]
    return tuple(address.removesuffix(end) for address in chosen[:ADDRESSES_PER_HEARTBEAT])


def claimed_addresses(peer: str, heartbeat: Heartbeat | None) -> list[str]:
    """Returns the addresses that the latest heartbeat of ``peer`` claims, at most ``ADDRESSES_PER_HEARTBEAT``; none
    without a heartbeat. Each ends in its peer id, so that only ``peer`` can answer there. None was tried."""
    return [f"{claim}/p2p/{peer}" for claim in heartbeat.addresses] if heartbeat is not None else []


class ClaimDials:
    """Bounds the dials of addresses that a peer sent and that were never reached: ``DIALS_PER_IP`` of one IP address at
    once, others wait. Once ``FAILURES_AT_ONCE`` were in vain, only one each ``FAILURE_EVERY_SECONDS``."""

    def __init__(self) -> None:
        self._failures: TokenBuckets[str] = TokenBuckets(1 / FAILURE_EVERY_SECONDS, FAILURES_AT_ONCE, IPS_REMEMBERED)
        self._dialling: dict[str, tuple[anyio.Semaphore, int]] = {}  # and how many dial or wait

    @asynccontextmanager
    async def place(self, candidate: Candidate) -> AsyncIterator[None]:
        """Waits for a place to dial the candidate. A dial that ends otherwise than by success was in vain.

        Raises ``UnreachableError`` where too many were.
        """
        if not candidate.teller or candidate.reached_at_seconds is not None:
            yield
            return
        ip = candidate.groups[1]
        places, users = self._dialling.get(ip) or (anyio.Semaphore(DIALS_PER_IP), 0)
        self._dialling[ip] = places, users + 1
        try:
            async with places:
                if not self._failures.has(ip, now_seconds=anyio.current_time()):
                    raise UnreachableError(f"too many peers that were said to be at {ip} were not; dialled again later")
                try:
                    yield
                except BaseException:
                    self._failures.take(ip, now_seconds=anyio.current_time())
                    raise
        finally:
            places, users = self._dialling.pop(ip)
            if users > 1:
                self._dialling[ip] = places, users - 1


def _ip(address: str) -> str:
    return address.split("/")[2] if address.count("/") > 1 else ""
