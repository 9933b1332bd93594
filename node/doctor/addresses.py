"""Judges the addresses of a configuration without a network: pure functions from text to what should be written."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from node.doctor.findings import Finding, error
from node.doctor.network_facts import endpoint_of
from node.printable import printable
from protocol.cluster.invite import SCHEME
from protocol.errors import MalformedError
from protocol.identity import public_bytes_of

_URL_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOST_AND_PORT: Final = re.compile(r"^(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^:/\[\]]*)):(?P<port>\d{1,5})/?$")
_SHOWN: Final = 160


def judge_listen(text: str) -> Finding | None:
    """Returns what is wrong with the address to listen on; None if a node can take it."""
    shown, written = printable(text, _SHOWN), text.strip()
    meant = as_multiaddr(written)
    parts = written.split("/")
    if meant is not None:
        return error("swarm.listen", f"{shown} is not a multiaddr", f"write {meant}")
    if len(parts) > 4 and parts[3] in ("udp", "quic", "quic-v1"):
        return error("swarm.listen", f"{shown}: a node listens on TCP only", f"write /{parts[1]}/{parts[2]}/tcp/PORT")
    endpoint = endpoint_of(written)
    if endpoint is None or endpoint.is_name or written != text or not _has_known_end(parts):
        wrong = "a name is no address to listen on" if endpoint and endpoint.is_name else "no address to listen on"
        return error("swarm.listen", f"{shown or 'an empty text'}: {wrong}", "write /ip4/0.0.0.0/tcp/PORT, or PORT 0")
    return None


def judge_peer(text: str) -> Finding | None:
    """Returns what is wrong with the address of a peer to dial; None if it can be dialled."""
    shown, written = printable(text, _SHOWN), text.strip()
    where = "which starling status prints on that machine"
    if SCHEME in written.lower():
        return error("swarm.peers", f"{shown} is an invite", "give it with --join instead of --peer")
    meant = as_multiaddr(written)
    if meant is not None:
        return error("swarm.peers", f"{shown} is not a multiaddr", f"write {meant}/p2p/PEER, {where}")
    endpoint, parts = endpoint_of(written), written.split("/")
    if written.startswith("/dnsaddr/") and written == text and parts[2] and _has_known_end(["", "", *parts]):
        return None
    if endpoint is None or written != text:
        return error("swarm.peers", f"{shown or 'an empty text'} is no peer's address", f"write its address, {where}")
    if len(parts) == 5:
        return error("swarm.peers", f"{shown} lacks the peer's id", f"write {shown}/p2p/PEER, {where}")
    if not _has_known_end(parts):
        return error(
            "swarm.peers", f"{shown} does not end in /p2p/ and a whole peer id", f"copy the whole address, {where}"
        )
    if endpoint.port == 0:
        return error("swarm.peers", f"{shown}: nobody answers on port 0", f"write its address, {where}")
    return None


def as_multiaddr(text: str) -> str | None:
    """Returns the multiaddr that HOST:PORT, [HOST]:PORT, :PORT, PORT, or a URL of these means; None for other texts."""
    bare = _URL_SCHEME.sub("", text)
    if bare.isascii() and bare.isdigit() and int(bare) <= 65535:
        return f"/ip4/0.0.0.0/tcp/{bare}"
    matched = _HOST_AND_PORT.match(bare)
    if matched is None or int(matched["port"]) > 65535:
        return None
    host, port = matched["v6"] or matched["host"] or "0.0.0.0", matched["port"]
    if host in ("*", "localhost"):
        host = "0.0.0.0" if host == "*" else "127.0.0.1"
    try:
        return f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}"
    except ValueError:
        return f"/dns4/{host}/tcp/{port}" if re.fullmatch(r"[A-Za-z0-9.-]+", host) else None


def _has_known_end(parts: list[str]) -> bool:
    """Whether nothing follows the port, or /p2p/ with the id of a peer."""
    if len(parts) == 5:
        return True
    if len(parts) != 7 or parts[5] != "p2p":
        return False
    try:
        public_bytes_of(parts[6])
    except MalformedError:
        return False
    return True
