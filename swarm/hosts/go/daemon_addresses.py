"""Addresses as the daemon sends them, in binary form, and as it takes them."""

from __future__ import annotations

from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.exceptions import Error as MultiaddrError  # type: ignore[import-untyped]

from protocol import base58
from protocol.errors import MalformedError, UnreachableError
from protocol.identity import PEER_ID_BYTES
from swarm.address_groups import groups_of
from swarm.host import Address, PeerId
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.lan_neighbours import is_loopback


def dialable_addresses(peer: messages.DaemonPeer) -> list[Address]:
    """Returns the addresses of a peer over TCP, then those through relays, loopback last.

    QUIC is left out, since hosts of the other kind cannot dial it; daemons tell each other of it when they connect.
    """
    texts = [text for content in peer.addresses if (text := _text_of(content))]
    usable = [a for a in dict.fromkeys(texts) if "/tcp/" in a and not a.endswith(("/ws", "/wss"))]
    usable.sort(key=lambda address: ("/p2p-circuit" in address, is_loopback(address)))
    return [f"{address}/p2p/{base58.to_text(peer.id[:PEER_ID_BYTES])}" for address in usable]


def ip_of(address: bytes) -> str:
    """Returns the IP address with which a multiaddr begins; empty for a relayed one."""
    text = _text_of(address)
    return text.split("/")[2] if text.startswith(("/ip4/", "/ip6/")) and "/p2p-circuit" not in text else ""


def network_of(address: bytes) -> str:
    """Returns the IPv4 address, or the IPv6 /64, from which a peer is connected; empty if it is unknown."""
    ip = ip_of(address)
    return groups_of(ip)[1].partition("/")[0] if ip else ""


def split_address(address: Address) -> tuple[bytes, PeerId]:
    """Splits an address into the part to dial, in binary form, and the peer expected there.

    Raises ``UnreachableError``.
    """
    where, separator, peer = address.rpartition("/p2p/")
    if not separator or not where:
        raise UnreachableError(f"{address} names no peer at an address; an address ends in /p2p/<peer id>")
    try:
        base58.to_bytes(peer[: 2 * PEER_ID_BYTES])
        return Multiaddr(where).to_bytes(), peer
    except (MultiaddrError, MalformedError, ValueError) as error:
        raise UnreachableError(f"{address} is not an address: {error}") from error


def _text_of(address: bytes) -> str:
    try:
        return str(Multiaddr(address))
    except (MultiaddrError, ValueError):
        return ""
