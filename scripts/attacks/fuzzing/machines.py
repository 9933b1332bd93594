"""What programs and devices beside this node say: the router at home, the Go daemon, and who opens a connection."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

from Crypto.Cipher import Salsa20
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.errors import MalformedError, UnreachableError
from protocol.identity import NodeKey
from scripts.attacks.fuzzing.measuring import Act
from scripts.attacks.fuzzing.targets import (
    DrawnConnection,
    DrawnStream,
    Target,
    all_of,
    direct,
    in_virtual_time,
    length_prefixed,
)
from swarm.host import GossipVerdict
from swarm.hosts.go import daemon_messages as daemon
from swarm.hosts.go.control import Frames, rubbish
from swarm.hosts.go.daemon_dht import DaemonDht
from swarm.hosts.go.daemon_gossip import DaemonGossip
from swarm.hosts.go.daemon_view import DaemonView
from swarm.hosts.go.streams import _origin
from swarm.hosts.libp2p.private_network import GREETING, PrivateConnection, PrivateNetworkError
from swarm.hosts.routers import pcp_messages as pcp
from swarm.hosts.routers import upnp_messages as upnp
from swarm.hosts.routers.http_exchange import ANSWER_BYTES, exchange_over

PEER = NodeKey(bytes(31) + b"\x08")
ROUTER_IP, OWN_PORT, NONCE = "192.168.1.1", 4001, bytes(range(12))
AT = upnp.RouterUrl(ROUTER_IP, 5000, "/root.xml")
PSKS = [bytes([number]) * 32 for number in (1, 2)]
_MAPPED = bytes(10) + b"\xff\xff"
_ADDRESSES = [
    "/ip4/9.9.9.9/tcp/4001", "/ip6/2001:4860::8/tcp/4001", "/ip4/9.9.9.9/udp/1/quic-v1", "/ip4/127.0.0.1/tcp/1/ws",
    f"/ip4/9.9.9.8/tcp/1/p2p/{PEER.peer_id}/p2p-circuit",
]  # fmt: skip


def machine_targets() -> list[Target]:
    datagrams, searches, answers, frames = _datagrams(), _searches(), _http_answers(), _daemon_frames()
    return [
        Target("datagram of a router", direct(_datagram), datagrams, 4, _extreme_datagram, 2),
        Target("answer to a search by UPnP", direct(_search_answer), searches, 3, _extreme_search, 1),
        Target("answer by HTTP of a router", _http_answer, answers, 1, _extreme_http, 0.5),
        Target("message of the Go daemon", direct(_of_daemon), frames, 4, _extreme_of_daemon, 2),
        Target("conversation with the Go daemon", _with_daemon, frames, 0.5, _extreme_of_daemon, 0.5),
        Target("first bytes of a private cluster", _first_bytes, [_greeting(psk) for psk in PSKS], 0.5),
    ]  # fmt: skip


# The router


def _datagram(raw: bytes) -> None:
    """Reads a datagram as the answer to each of the three questions."""
    all_of(
        lambda: pcp.read_pmp_answer(raw, OWN_PORT),
        lambda: pcp.read_pmp_address(raw),
        lambda: pcp.has_restarted(pcp.read_pcp_answer(raw, NONCE, OWN_PORT).epoch_seconds, 0, 1.0),
    )


def _datagrams() -> list[bytes]:
    ip = _MAPPED + bytes((9, 9, 9, 9))
    return [
        struct.pack("!BBBBII12x12sB3xHH16s", 2, 0x81, 0, 0, 7200, 99, NONCE, 6, OWN_PORT, OWN_PORT, ip),
        struct.pack("!BBBBII12x12sB3xHH16s", 2, 0x81, 0, 11, 0, 99, NONCE, 6, OWN_PORT, 0, bytes(16)),
        struct.pack("!BBHI4s", 0, 0x80, 0, 99, bytes((9, 9, 9, 9))),
        struct.pack("!BBHIHHI", 0, 0x82, 0, 99, OWN_PORT, OWN_PORT, 7200),
        struct.pack("!BBH", 0, 0x80, 1),
    ]


def _extreme_datagram(random: Random) -> bytes:
    def number(bits: int) -> int:
        return random.choice((0, 1, 2**bits - 1, 2 ** (bits - 1)))

    ip = random.choice((_MAPPED + bytes(4), _MAPPED + b"\xff" * 4, bytes(16), b"\xff" * 16))
    match random.randrange(3):
        case 0:
            fields = (2, 0x81, 0, random.randrange(256), number(32), number(32), NONCE, 6, OWN_PORT, number(16), ip)
            return struct.pack("!BBBBII12x12sB3xHH16s", *fields) + bytes(random.choice((0, 1000)))
        case 1:
            return struct.pack("!BBHI4s", 0, 0x80, random.choice((0, 65535)), number(32), ip[:4])
        case _:
            return struct.pack("!BBHIHHI", 0, 0x82, random.choice((0, 3)), number(32), OWN_PORT, number(16), number(32))


def _search_answer(raw: bytes) -> None:
    upnp.read_search_answer(raw, ROUTER_IP)


def _search(location: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nLOCATION: {location}\r\nST: x\r\n\r\n".encode()


def _searches() -> list[bytes]:
    return [_search(f"http://{ROUTER_IP}:5000/root.xml"), _search(f"http://{ROUTER_IP}"), b"HTTP/1.1 404 no\r\n\r\n"]


def _extreme_search(random: Random) -> bytes:
    host = random.choice((ROUTER_IP, "9.9.9.9", "[::1]", "[", f"a@{ROUTER_IP}", "192.168.1.1.", "%31", "０"))
    port = random.choice(("", ":0", ":65535", ":65536", ":x", ":-1", ":" + "9" * 400))
    return _search(f"http://{host}{port}/{random.choice(('', '..', '%00', 'a' * 60000, '?' * 400))}")


def _http_answer(raw: bytes) -> Act:
    """Reads an answer as a description, and as the answer to an action."""

    async def act() -> None:
        connection: Any = DrawnConnection(raw)
        status, body = await exchange_over(connection, AT, "POST", {"SOAPAction": "x"}, b"question")
        all_of(lambda: upnp.external_ip(upnp.read_action_answer(status, body)), lambda: upnp.read_description(body, AT))

    return lambda: in_virtual_time(act)


def _http(body: bytes, status: int = 200, head: str = "") -> bytes:
    return f"HTTP/1.1 {status} OK\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


def _description(inner: str) -> bytes:
    return (
        f'<?xml version="1.0"?><root xmlns="urn:x"><URLBase>http://{ROUTER_IP}:5000/</URLBase>{inner}</root>'.encode()
    )


def _service(kind: str, url: str) -> str:
    return f"<service><serviceType>{kind}</serviceType><controlURL>{url}</controlURL></service>"


def _soap(inner: str) -> bytes:
    return f'<s:Envelope xmlns:s="urn:s"><s:Body>{inner}</s:Body></s:Envelope>'.encode()


def _http_answers() -> list[bytes]:
    described = _description("".join(_service(kind, "/control") for kind in upnp.SERVICES))
    return [
        _http(described),
        _http(_soap("<u:r><NewExternalIPAddress>9.9.9.9</NewExternalIPAddress></u:r>")),
        _http(_soap("<s:Fault><errorCode>725</errorCode></s:Fault>"), 500),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n<root\r\n2\r\n/>\r\n0\r\n\r\n",
        _http(b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + _http(described),
    ]


def _extreme_http(random: Random) -> bytes:
    """Near the most bytes: deep, wide, of long names, of long texts, of many attributes, of many entities."""
    room = ANSWER_BYTES - 1000
    match random.randrange(7):
        case 0:
            depth = random.choice((upnp.DEPTH - 1, room // 7))
            body = b"<a>" * depth + b"</a>" * depth
        case 1:
            body = b"<a>" + b"<b/>" * (room // 5) + b"</a>"
        case 2:
            body = b"<" + b"a" * room + b"/>"
        case 3:
            body = b"<a>" + random.choice((b"x", b"&lt;", b"&#x10ffff;", "й".encode())) * (room // 10) + b"</a>"
        case 4:
            body = b"<a " + b" ".join(b'a%d="1"' % number for number in range(room // 12)) + b"/>"
        case 5:
            body = b'<!DOCTYPE a [<!ENTITY b "' + b"c" * 1000 + b'">]><a>' + b"&b;" * 1000 + b"</a>"
        case _:
            url = random.choice(("/control", "http://[", "//9.9.9.9/", "\\", "?" * 600, f"http://{ROUTER_IP}:99999/"))
            body = _description("".join(_service(random.choice(upnp.SERVICES), url) for _ in range(300)))
    if random.random() < 0.2:
        return b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (room // 6) + b"\r\n"
    return _http(body, random.choice((200, 500)))


# The Go daemon


def _of_daemon(raw: bytes) -> None:
    """Reads a message as each of those that the daemon sends, and does what follows from it."""
    gossip = DaemonGossip(
        PEER.peer_id, is_known=lambda peer: True, is_blocked=lambda peer: False, block=lambda peer: None
    )
    all_of(
        lambda: daemon.read_answer(raw),
        lambda: _origin(daemon.read_stream_origin(raw)),
        lambda: daemon.read_provider(raw),
        lambda: gossip._judge(raw, lambda peer, content: GossipVerdict.REJECT, lambda peer, content: None),
    )


class _Control:
    """As the control socket of a daemon that answers every request with these bytes, framed, again and again."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    async def request(self, message: bytes) -> daemon.DaemonAnswer:
        async with self.conversation(message) as (_, answer, _frames):
            return answer
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def conversation(self, message: bytes) -> AsyncIterator[tuple[Any, daemon.DaemonAnswer, Frames]]:
        connection: Any = DrawnConnection(length_prefixed(self._raw) * 3)
        frames = Frames(connection)
        message = await frames.next()
        try:
            answer = daemon.read_answer(message)
        except MalformedError as error:
            raise rubbish(error) from error
        yield connection, answer, frames


def _with_daemon(raw: bytes) -> Act:
    running: Any = SimpleNamespace(control=_Control(raw), pid=1)

    async def act() -> None:
        view, dht = DaemonView(lambda: running), DaemonDht(PEER.peer_id, lambda: running)
        try:
            await view.look_at_peers()
            await view.look_at_addresses()
            view.relays()
        finally:
            await dht.find_providers(bytes(32), limit=32, deadline_seconds=5.0)

    return lambda: in_virtual_time(act)


def _daemon_peer(addresses: list[bytes]) -> bytes:
    own_id = b"\x00\x24\x08\x01\x12\x20" + PEER.public_bytes
    return daemon._bytes(1, own_id) + b"".join(daemon._bytes(2, address) for address in addresses)


def _daemon_frames() -> list[bytes]:
    addresses = [Multiaddr(address).to_bytes() for address in _ADDRESSES]
    peer = _daemon_peer(addresses)
    author = daemon._bytes(1, b"\x12\x20" + bytes(32))
    origin = author + daemon._bytes(2, addresses[0]) + daemon._bytes(3, b"/starling/x")
    return [
        daemon._number(1, 0),
        daemon._number(1, 1) + daemon._bytes(2, daemon._bytes(1, b"no route\nto it")),
        daemon._number(1, 0) + daemon._bytes(3, origin),
        daemon._number(1, 0) + daemon._bytes(4, peer) + daemon._bytes(6, peer) * 3,
        origin,
        daemon._number(1, 1) + daemon._bytes(2, peer),
        daemon._number(1, 2),
        author + daemon._bytes(2, b"an announcement") + daemon._bytes(3, bytes(8)),
    ]


def _extreme_of_daemon(random: Random) -> bytes:
    """As many peers as strangers could have a daemon name, of long ids, or with many addresses."""
    addresses = [Multiaddr(address).to_bytes() for address in _ADDRESSES]
    match random.randrange(4):
        case 0:
            return daemon._number(1, 0) + daemon._bytes(6, _daemon_peer(addresses[:1])) * random.choice((1, 300))
        case 1:
            return daemon._number(1, 0) + daemon._bytes(4, _daemon_peer(addresses * random.choice((1, 40))))
        case 2:
            return daemon._number(1, 0) + daemon._bytes(6, daemon._bytes(1, b"\xff" * random.choice((1, 65535))))
        case _:
            addresses = [random.randbytes(random.choice((0, 4096)))] * 8
            return daemon._number(1, 1) + daemon._bytes(2, _daemon_peer(addresses))


# The first bytes of a connection to a node of a private cluster


def _greeting(psk: bytes) -> bytes:
    nonce = bytes(range(8))
    return nonce + Salsa20.new(key=psk, nonce=nonce).encrypt(GREETING + b"\x20/noise")


def _first_bytes(raw: bytes) -> Act:
    class Raw(DrawnStream):
        is_initiator = False

        async def read(self, n: int | None = None) -> bytes:
            return await self.receive(n or 65536)

        async def write(self, data: bytes) -> None:
            return

    async def act() -> None:
        connection: Any = PrivateConnection(Raw(raw), PSKS)  # type: ignore[arg-type]
        try:
            await connection.read(100)
        except PrivateNetworkError as error:
            raise UnreachableError(str(error)) from error

    return lambda: in_virtual_time(act)
