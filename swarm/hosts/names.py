"""Looks up addresses that name a machine, /dns…/NAME/tcp/PORT/p2p/PEER and /dnsaddr/NAME.

/dns, /dns4 and /dns6 ask the machine's own resolver, which also knows its hosts file. /dnsaddr asks for the text
records of _dnsaddr.NAME (https://github.com/multiformats/multiaddr/blob/master/protocols/DNSADDR.md), which hold
addresses, and may hold names again. Only names that the node's owner wrote are looked up: what peers send has none
(``swarm.peers.discovery``). It runs on asyncio too, for `starling doctor`.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from protocol.errors import UnreachableError
from swarm.deadlines import deadline
from swarm.host import Address

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

ADDRESSES_PER_NAME: Final = 16
LOOKUPS: Final = 32  # of one name and of those that it leads to: records that name names would multiply with each step
_DEPTH: Final = 4  # of names that lead to names
_FAMILIES: Final = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}
_RECORD: Final = "dnsaddr="


async def resolve(name: Address, *, deadline_seconds: float, resolver: Resolver | None = None) -> Sequence[Address]:
    """Returns 1 to ``ADDRESSES_PER_NAME`` addresses, each /ip4 or /ip6, over TCP, ending in /p2p/<peer id>; without it
    where a machine's name is given without.

    ``resolver`` asks for text records, by default those of this machine's name servers. Raises ``UnreachableError`` for
    a name that leads to no such address, ``DeadlineError`` where nobody answers.
    """
    with deadline(deadline_seconds, f"looking up {name}"):
        found = await _resolved(name, resolver, _DEPTH, set())
    usable = [a for a in dict.fromkeys(found) if a.startswith(("/ip4/", "/ip6/")) and "/tcp/" in a]
    if "/p2p/" in name or name.startswith("/dnsaddr/"):
        usable = [a for a in usable if "/p2p/" in a]
    if not usable:
        raise UnreachableError(f"{name} leads to no address of a peer")
    return usable[:ADDRESSES_PER_NAME]


async def _resolved(name: Address, resolver: Resolver | None, depth: int, asked: set[Address]) -> list[Address]:
    """Looks up each name once, and no more than ``LOOKUPS``; ``asked`` are those that were."""
    _, kind, host, rest = [*name.split("/", 3), "", "", ""][:4]
    if kind not in (*_FAMILIES, "dnsaddr") or not depth:
        return [name]
    if name in asked or len(asked) >= LOOKUPS:
        return []
    asked.add(name)
    if kind in _FAMILIES:
        return [f"{ip}/{rest}" for ip in await _ips(name, host, _FAMILIES[kind])]
    found: list[Address] = []
    for record in (await _text_records(name, host, resolver))[:ADDRESSES_PER_NAME]:
        if record.endswith(rest):  # the id of the one peer that is wanted
            with suppress(UnreachableError):  # where one record leads nowhere, others do
                found += await _resolved(record, resolver, depth - 1, asked)
    return found


async def _ips(name: Address, host: str, family: socket.AddressFamily) -> list[str]:
    try:
        found = await anyio.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter of what can be no name
        raise UnreachableError(f"{name} cannot be looked up: {error}") from error
    return [f"/ip{6 if kind == socket.AF_INET6 else 4}/{where[0]}" for kind, _, _, _, where in found]


async def _text_records(name: Address, host: str, resolver: Resolver | None) -> list[Address]:
    from dns.asyncresolver import Resolver  # it brings every kind of DNS along, which few need
    from dns.exception import DNSException

    try:
        answer = await (resolver or Resolver()).resolve(f"_dnsaddr.{host}", "TXT")
    except (DNSException, OSError) as error:
        raise UnreachableError(f"{name} cannot be looked up: {error}") from error
    texts = [b"".join(record.strings).decode("ascii", errors="replace") for record in answer]
    return [text.removeprefix(_RECORD) for text in texts if text.startswith(f"{_RECORD}/")]
