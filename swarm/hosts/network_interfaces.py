"""The addresses of this machine: those at which a host that listens on all interfaces can be dialled."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Sequence

import ifaddr

REFRESH_SECONDS = 10.0


def machine_ips() -> list[str]:
    """Returns the addresses of all interfaces that are up, except link-local IPv6, whose dialling needs a zone."""
    found = []
    for adapter in ifaddr.get_adapters():
        for ip in adapter.ips:
            text = ip.ip if isinstance(ip.ip, str) else ip.ip[0]
            if not (ip.is_IPv6 and ipaddress.ip_address(text).is_link_local):
                found.append(text)
    return found


class NetworkInterfaces:
    """``machine_ips``, read at most every ``REFRESH_SECONDS``, because the library asks for them very often."""

    def __init__(self) -> None:
        self._ips: list[str] = []
        self._asked_seconds = -REFRESH_SECONDS

    def ips(self) -> list[str]:
        now = time.monotonic()
        if now - self._asked_seconds >= REFRESH_SECONDS:
            self._ips, self._asked_seconds = machine_ips(), now
        return self._ips


def dialable(listening: Iterable[tuple[str, int]], ips: Callable[[], Sequence[str]]) -> list[tuple[str, int]]:
    """Returns the addresses of listening sockets: wildcards expanded, loopback last.

    ``ips`` returns those of the machine. It is called for wildcards alone: reading them takes milliseconds.
    """
    concrete: dict[tuple[str, int], None] = {}
    for host, port in listening:
        address = ipaddress.ip_address(host)
        hosts: Iterable[str] = [host]
        if address.is_unspecified:
            hosts = (ip for ip in ips() if ipaddress.ip_address(ip).version == address.version)
        for each in hosts:
            concrete[(each, port)] = None
    return sorted(concrete, key=lambda pair: ipaddress.ip_address(pair[0]).is_loopback)
