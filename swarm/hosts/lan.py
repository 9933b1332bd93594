"""LAN discovery: libp2p's mDNS (https://github.com/libp2p/specs/blob/master/discovery/mdns.md) on zeroconf.

A host announces its addresses in TXT records ``dnsaddr=<multiaddr>/p2p/<peer id>`` of a service with a random name, and
keeps the addresses that others announce. A member of an open swarm adds ``swarm=<id in hexadecimal> <name>``, for
``starling swarms``; other programs skip it, and a private cluster says nothing. A host multicasts on every IPv4
interface from ``start`` to ``stop``; both block for up to a second, so call them in a thread. The announcements of
others are bounded and are only hints to dial.

The library's own mDNS is not used, because it announces wildcard addresses as they are and blocks the event loop.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

from protocol.limits import NAME_BYTES
from swarm.host import Address, LanSwarm

SERVICE_TYPE = "_p2p._udp.local."
QUERY_SECONDS = 3.0
MAX_SERVICES = 64
ADDRESSES_PER_SERVICE = 8  # together a quarter of the addresses that a node knows at most
TXT_BYTES = 255  # of one string in a TXT record
SWARM_ID_DIGITS = 32


class HeardHost(NamedTuple):
    """What one host announces."""

    addresses: tuple[Address, ...]
    swarm: LanSwarm | None


class LanDiscovery(ServiceListener):
    """Announces one host on the local network, and keeps the addresses that other hosts announce."""

    def __init__(self, peer_id: str, addresses: Sequence[Address], swarm: LanSwarm | None = None) -> None:
        self._peer_id = peer_id
        name = f"{secrets.token_hex(16)}.{SERVICE_TYPE}"
        self._own = ServiceInfo(
            SERVICE_TYPE,
            name,
            port=int(addresses[0].split("/")[4]) if addresses else 0,
            properties=encode_txt(addresses, swarm),
            server=name.replace(SERVICE_TYPE, "local."),
            parsed_addresses=sorted({address.split("/")[2] for address in addresses}),
        )
        self._heard: dict[str, HeardHost] = {}
        self._lock = threading.Lock()  # zeroconf calls from a thread of its own
        self._zeroconf: Zeroconf | None = None

    def start(self) -> None:
        self._zeroconf = Zeroconf(ip_version=IPVersion.V4Only)
        self._zeroconf.register_service(self._own)
        ServiceBrowser(self._zeroconf, SERVICE_TYPE, listener=self)

    def stop(self) -> None:
        """Withdraws the announcement, so that others forget this host at once."""
        if self._zeroconf is not None:
            self._zeroconf.unregister_all_services()
            self._zeroconf.close()

    def heard(self) -> list[Address]:
        return [address for host in self.heard_hosts() for address in host.addresses]

    def heard_hosts(self) -> list[HeardHost]:
        with self._lock:
            return list(self._heard.values())

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        if name == self._own.name:
            return
        info = zc.get_service_info(type_, name, timeout=int(QUERY_SECONDS * 1000))
        if info is None or not info.text:
            return
        addresses = decode_txt(info.text, exclude=self._peer_id)
        with self._lock:
            if addresses and (name in self._heard or len(self._heard) < MAX_SERVICES):
                self._heard[name] = HeardHost(addresses, decode_swarm(info.text))

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        with self._lock:
            self._heard.pop(name, None)


def hear(seconds: float, *, ourselves: str) -> list[Address]:
    """Returns the addresses that others announce on the local network within ``seconds``; announces nothing.

    Raises ``OSError`` if multicast cannot be used.
    """
    return [address for host in hear_hosts(seconds, ourselves=ourselves) for address in host.addresses]


def hear_hosts(seconds: float, *, ourselves: str) -> list[HeardHost]:
    """As ``hear``, host by host, with the open swarm that each names.

    Raises ``OSError`` if multicast cannot be used.
    """
    discovery = LanDiscovery(ourselves, [])
    listening = Zeroconf(ip_version=IPVersion.V4Only)
    try:
        ServiceBrowser(listening, SERVICE_TYPE, listener=discovery)
        time.sleep(seconds)
        return discovery.heard_hosts()
    finally:
        listening.close()


def encode_txt(addresses: Sequence[Address], swarm: LanSwarm | None = None) -> bytes:
    """Encodes one string ``dnsaddr=…`` per address, each after its length, and ``swarm=…``; those that do not fit are
    left out."""
    strings = [f"dnsaddr={address}".encode() for address in addresses[:ADDRESSES_PER_SERVICE]]
    if swarm is not None:
        strings.append(f"swarm={swarm.swarm_id} {swarm.name}".encode())
    return b"".join(bytes([len(string)]) + string for string in strings if len(string) <= TXT_BYTES)


def decode_txt(text: bytes, *, exclude: str) -> tuple[Address, ...]:
    """Returns the addresses in a TXT record, except those of the peer ``exclude``; skips everything else in it."""
    addresses: list[Address] = []
    for key, value in _strings(text):
        address = value.decode("ascii", errors="replace")
        peer = address.rpartition("/p2p/")[2]
        if key.startswith(b"dnsaddr") and "/p2p/" in address and peer not in ("", exclude) and address.isprintable():
            addresses.append(address)
    return tuple(addresses[:ADDRESSES_PER_SERVICE])


def decode_swarm(text: bytes) -> LanSwarm | None:
    """Returns the open swarm that a TXT record names first; None where it names none."""
    for key, value in _strings(text):
        swarm_id, _, name = value.decode(errors="replace").partition(" ")
        if key == b"swarm" and len(swarm_id) == SWARM_ID_DIGITS and set(swarm_id) <= set("0123456789abcdef") and name:
            return LanSwarm(swarm_id, name[:NAME_BYTES])
    return None


def _strings(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    start = 0
    while start < len(text):
        size = text[start]
        key, _, value = text[start + 1 : start + 1 + size].partition(b"=")
        start += 1 + size
        yield key, value
