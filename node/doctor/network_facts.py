"""Facts about the network: the address to listen on, our addresses, configured peers, multicast. Judges nothing."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import TransportError
from swarm.hosts.names import resolve
from swarm.hosts.network_interfaces import machine_ips

DIAL_SECONDS = 5.0  # for a configured peer to answer
LISTEN_ON_LAN_SECONDS = 1.5
GREETING = b"\x13/multistream/1.0.0\n"  # the first bytes that each side of a libp2p connection sends


@dataclass(frozen=True, slots=True)
class ListenEndpoint:
    """The part of a multiaddr that a socket needs."""

    host: str
    port: int
    is_name: bool  # whether ``host`` is a DNS name


@dataclass(frozen=True, slots=True)
class ListenFacts:
    configured: str  # multiaddr
    endpoint: ListenEndpoint | None  # None: a node cannot listen on this multiaddr
    running_addresses: tuple[str, ...] | None  # of the node that runs here; None: no node runs
    bind_error: str | None  # name of the error of a trial, such as "EADDRINUSE"


@dataclass(frozen=True, slots=True)
class ApiFacts:
    port: int  # 0: none is configured
    bind_error: str | None  # as in ``ListenFacts``; not tried while a node runs
    token: Path
    token_mode: int | None  # permission bits; None: there is no token yet


@dataclass(frozen=True, slots=True)
class LanFacts:
    enabled: bool
    interfaces: tuple[str, ...]  # IPv4 addresses from which multicast can be sent
    failure: str | None
    heard: tuple[str, ...]  # addresses of other nodes


def endpoint_of(address: str) -> ListenEndpoint | None:
    """Reads /ip4|ip6|dns…/HOST/tcp/PORT, with or without more parts after it; returns None for anything else."""
    parts = address.split("/")
    if len(parts) < 5 or parts[0] or parts[3] != "tcp" or not (parts[4].isascii() and parts[4].isdigit()):
        return None
    host, port = parts[2], int(parts[4])
    if port > 65535:
        return None
    if parts[1] in ("dns", "dns4", "dns6"):
        return ListenEndpoint(host, port, is_name=True) if host else None
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return None
    return ListenEndpoint(host, port, is_name=False) if parts[1] == f"ip{version}" else None


def listen_facts(configured: str, running_addresses: tuple[str, ...] | None) -> ListenFacts:
    """Binds the address for a moment to check that it is free, unless a node of ours uses it."""
    endpoint = endpoint_of(configured)
    if endpoint is None or endpoint.is_name:
        return ListenFacts(configured, None, running_addresses, None)
    failure = None if running_addresses is not None else _bind_error(endpoint)
    return ListenFacts(configured, endpoint, running_addresses, failure)


def api_facts(ports: Sequence[int], token: Path, *, running: bool) -> ApiFacts:
    """Binds the first free one of ``ports`` for a moment, unless a node of ours runs."""
    port, failure = (ports[0] if ports else 0), None
    for candidate in () if running else ports:
        found = _bind_error(ListenEndpoint("127.0.0.1", candidate, is_name=False))
        if found is None:
            port, failure = candidate, None
            break
        failure = failure or found
    return ApiFacts(port, failure, token, stat.S_IMODE(token.stat().st_mode) if token.exists() else None)


def dial_failures(addresses: Sequence[str], connected: frozenset[str]) -> dict[str, str | None]:
    """Dials each configured peer and returns why it does not answer, None where it does, within ``DIAL_SECONDS`` for
    all of them. A peer whose id is ``connected`` counts as answering and is not dialled."""
    return asyncio.run(_dial_all(addresses, connected))


def lan_facts(enabled: bool, ourselves: str) -> LanFacts:
    """Listens to the local network for ``LISTEN_ON_LAN_SECONDS`` where discovery is ``enabled``."""
    interfaces = tuple(ip for ip in machine_ips() if _is_external_ipv4(ip))
    if not enabled or not interfaces:
        return LanFacts(enabled, interfaces, None, ())
    from swarm.hosts.lan import hear  # late: each start of a node checks its settings, and does not listen here

    try:
        heard = hear(LISTEN_ON_LAN_SECONDS, ourselves=ourselves)
    except OSError as failure:
        return LanFacts(enabled, interfaces, str(failure), ())
    return LanFacts(enabled, interfaces, None, tuple(heard))


def _bind_error(endpoint: ListenEndpoint) -> str | None:
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # otherwise closed connections of an earlier run count as use
            trial.bind((endpoint.host, endpoint.port))
            trial.listen(1)
    except OSError as failure:
        return errno.errorcode.get(failure.errno or 0, str(failure))
    return None


async def _dial_all(addresses: Sequence[str], connected: frozenset[str]) -> dict[str, str | None]:
    failures = await asyncio.gather(*(_dial(address, connected) for address in addresses))
    return dict(zip(addresses, failures, strict=True))


async def _dial(address: str, connected: frozenset[str]) -> str | None:
    """Returns why no libp2p peer answers at ``address``; None where one does."""
    if address.startswith("/dnsaddr/"):
        try:
            leads_to = await resolve(address, deadline_seconds=DIAL_SECONDS)
        except TransportError as error:
            return str(error)
        failures = list((await _dial_all(leads_to, connected)).values())
        return None if None in failures else failures[0]
    endpoint = endpoint_of(address)
    if endpoint is None or "/p2p/" not in address:
        return "not an address of the form /ip4/HOST/tcp/PORT/p2p/PEER"
    if address.rpartition("/p2p/")[2] in connected:
        return None
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            try:
                writer.write(GREETING)
                answer = await reader.readexactly(len(GREETING))
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer within {DIAL_SECONDS:.0f} s"
    except asyncio.IncompleteReadError:
        return "it closed the connection"
    except socket.gaierror as failure:
        return f"its name cannot be resolved ({failure.strerror})"
    except OSError as failure:  # asyncio's message lacks the reason, unless it tried several addresses
        return os.strerror(failure.errno) if failure.errno else str(failure)
    return None if answer == GREETING else "the program that answers there is not a libp2p peer"


def _is_external_ipv4(ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    return address.version == 4 and not address.is_loopback
