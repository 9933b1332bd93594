"""Judges the addresses of a configuration without a network: pure functions from text to what should be written."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from node.doctor.findings import Finding, error
from node.doctor.network_facts import endpoint_of
from node.printable import printable
from protocol.cluster.invite import SCHEME
from protocol.errors import MalformedError
from protocol.identity import public_bytes_of

_URL_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOST_AND_PORT: Final = re.compile(r"^(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^:/\[\]]*)):(?P<port>\d{1,5})/?$")
_NAME: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9.-]+")  # of a machine: numbers alone are none
_PORT: Final = re.compile(r"[0-9]{1,5}")
_BRACKETS: Final = re.compile(r"^\[(.*)\]$")
EVERYWHERE: Final = {4: "0.0.0.0", 6: "::"}  # all addresses of the own machine, by version
_NOWHERE: Final = ("/ip4/0.0.0.0/", "/ip6/::/")  # every address of the own machine, and nobody's to dial
DEFAULT_PORT: Final = 4001  # libp2p's usual one
PRIVILEGED: Final = 1023
MAX_PORT: Final = 65535
_SHOWN: Final = 160


def judge_listen(text: str, own_ips: Sequence[str]) -> Finding | None:
    """Returns what is wrong with the address to listen on; None if a node can take it. The remedy is an address on
    which a machine with ``own_ips`` can listen."""
    shown, written = printable(text, _SHOWN) or "an empty text", text.strip()
    remedy = f"write {listen_hint(written, own_ips)}"
    parts = written.split("/")
    endpoint = endpoint_of(written)
    if "udp" in parts or "quic" in parts or "quic-v1" in parts:
        return error("swarm.listen", f"{shown}: a node listens on TCP only", remedy)
    if endpoint is not None and endpoint.is_name:
        return error("swarm.listen", f"{shown}: a name is no address to listen on", remedy)
    if endpoint is not None and written == text and _has_known_end(parts):
        return None
    wrong = "no address to listen on" if written.startswith("/") or not written else "not a multiaddr"
    return error("swarm.listen", f"{shown}: {wrong}", remedy)


def listen_hint(text: str, own_ips: Sequence[str]) -> str:
    """Returns the address to listen on that ``text`` comes nearest to: of its IP address, where the machine has it, and
    of its port, where no privileges are needed for it or the IP address shows that it is one."""
    version, host, port = 4, EVERYWHERE[4], DEFAULT_PORT
    meant = as_multiaddr(text)
    parts = (meant or text).split("/")
    bare = ["127.0.0.1" if part == "localhost" else _BRACKETS.sub(r"\1", part) for part in parts]
    ip = next((found for part in bare if (found := _ip(part)) is not None), None)
    if ip is not None:
        is_own = ip.is_unspecified or ip.is_loopback or str(ip) in own_ips
        version, host = ip.version, str(ip) if is_own else EVERYWHERE[ip.version]
    number = next((int(part) for part in reversed(parts) if _PORT.fullmatch(part)), None)
    if number is not None and (number == 0 or number > PRIVILEGED or ip is not None) and number <= MAX_PORT:
        port = number
    return f"/ip{version}/{host}/tcp/{port}"


def judge_peer(text: str) -> Finding | None:
    """Returns what is wrong with the address of a peer to dial; None if it can be dialled."""
    shown, written = printable(text, _SHOWN), text.strip()
    where = "which starling status prints on that machine"
    if SCHEME in written.lower():
        return error("swarm.peers", f"{shown} is an invite", "give it with --join instead of --peer")
    meant = as_multiaddr(written)
    if meant is not None and not meant.startswith(_NOWHERE):
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
    if _PORT.fullmatch(bare) and int(bare) <= MAX_PORT:
        return f"/ip4/0.0.0.0/tcp/{bare}"
    matched = _HOST_AND_PORT.match(bare)
    if matched is None or int(matched["port"]) > MAX_PORT:
        return None
    host, port = matched["v6"] or matched["host"] or "0.0.0.0", matched["port"]
    if host in ("*", "localhost"):
        host = "0.0.0.0" if host == "*" else "127.0.0.1"
    try:
        return f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}"
    except ValueError:
        return f"/dns4/{host}/tcp/{port}" if _NAME.fullmatch(host) else None


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


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
