"""Which addresses this machine has: what "listen on all interfaces" means to someone who wants to dial."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Sequence

import ifaddr

REFRESH_SECONDS = 10.0


def machine_ips() -> list[str]:
    """Addresses of all interfaces that are up; link-local IPv6 left out, since it needs a zone to be dialled."""
    found = []
    for adapter in ifaddr.get_adapters():
        for ip in adapter.ips:
            text = ip.ip if isinstance(ip.ip, str) else ip.ip[0]
            if not (ip.is_IPv6 and ipaddress.ip_address(text).is_link_local):
                found.append(text)
    return found


class Interfaces:
    """``machine_ips``, asked of the system at most every ``REFRESH_SECONDS``: the library wants them all the time."""

    def __init__(self) -> None:
        self._ips: list[str] = []
        self._asked_seconds = -REFRESH_SECONDS

    def ips(self) -> list[str]:
        now = time.monotonic()
        if now - self._asked_seconds >= REFRESH_SECONDS:
            self._ips, self._asked_seconds = machine_ips(), now
        return self._ips


def dialable(listening: Iterable[tuple[str, int]], ips: Sequence[str]) -> list[tuple[str, int]]:
    """Concrete addresses for the sockets that listen, of a machine with ``ips``: wildcards expanded, loopback last."""
    concrete: dict[tuple[str, int], None] = {}
    for host, port in listening:
        address = ipaddress.ip_address(host)
        hosts = [ip for ip in ips if ipaddress.ip_address(ip).version == address.version]
        for each in hosts if address.is_unspecified else [host]:
            concrete[(each, port)] = None
    return sorted(concrete, key=lambda pair: ipaddress.ip_address(pair[0]).is_loopback)
