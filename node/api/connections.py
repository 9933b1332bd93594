"""Bounds the connections to the API on TCP, which every user of this machine can open.

    at most MAX_CONNECTIONS in all, at most OTHERS_CONNECTIONS of them from other users than the node's own
    the first whole request within FIRST_REQUEST_SECONDS; between two requests at most IDLE_SECONDS

So the descriptors that the node needs for its files and children stay free, and no other user can lock the owner out.
Where there is no room, the connection that has been idle longest makes room, of another user first; if none is idle,
the new one is closed at once. Linux's sock_diag(7) says who connects; where the system does not say it, all are treated
as the owner's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

MAX_CONNECTIONS: Final = 128
OTHERS_CONNECTIONS: Final = 64
FIRST_REQUEST_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 15.0

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST: Final = 1  # NLM_F_REQUEST
_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_QUERY: Final = struct.Struct("=BBBBI")  # inet_diag_req_v2: family, protocol, extensions, padding, states
_SOCKET: Final = struct.Struct("!HH16s16s")  # inet_diag_sockid: ports and addresses, then interface and cookie
_ANY: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_USER_AT: Final = _HEADER.size + 4 + _SOCKET.size + len(_ANY) + 12  # in the answer, an inet_diag_msg
_ANSWER_SECONDS: Final = 0.1  # the kernel answers at once

Address = tuple[str, int]  # IPv4


def user_of(theirs: Address, ours: Address) -> int | None:
    """Returns the id of the user that owns the socket ``theirs``, connected to ``ours``; None where nothing says it. It
    takes microseconds however many sockets there are, since a request names one."""
    ports_and_hosts = _SOCKET.pack(theirs[1], ours[1], socket.inet_aton(theirs[0]), socket.inet_aton(ours[0]))
    query = _QUERY.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ports_and_hosts + _ANY
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWER_SECONDS)
            kernel.send(_HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST, 1, 0) + query)
            answer = kernel.recv(4096)
    except (OSError, AttributeError):  # no netlink here: macOS has none, a sandbox may forbid it
        return None
    kind = _HEADER.unpack_from(answer)[1]
    return int(struct.unpack_from("=I", answer, _USER_AT)[0]) if kind == _BY_FAMILY else None


@dataclass(slots=True)
class ApiConnection:
    """One open connection."""

    handler: web.RequestHandler
    is_owner: bool  # it comes from the user that the node runs as
    idle_since: float  # by the loop's clock
    requests: int = 0
    answering: int = 0  # requests that are being answered now


class Connections:
    """The open connections of one server."""

    def __init__(self, user: Callable[[Address, Address], int | None] = user_of) -> None:
        self._user = user
        self._open: dict[web.RequestHandler, ApiConnection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def protocol_of(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """Returns what ``loop.create_server`` takes."""
        return lambda: _Gate(self, server)

    def is_owner(self, request: web.BaseRequest) -> bool:
        """Returns whether ``request`` comes from the user that the node runs as."""
        connection = self._open.get(request.protocol)
        return connection is None or connection.is_owner  # None: it came over the Unix socket

    @contextmanager
    def answering(self, request: web.BaseRequest) -> Iterator[None]:
        """Keeps the connection of ``request`` open for the duration of the context."""
        connection = self._open.get(request.protocol)
        if connection is None:
            yield
            return
        connection.requests += 1
        connection.answering += 1
        try:
            yield
        finally:
            connection.answering -= 1
            connection.idle_since = _now()

    def admit(self, transport: asyncio.Transport, server: web.Server) -> None:
        """Gives a new connection to ``server``, or closes it."""
        for handler in [handler for handler in self._open if handler.transport is None]:
            del self._open[handler]
        theirs, ours = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        user = self._user(theirs, ours) if theirs else None  # none: it is closed already
        is_owner = user is None or user == os.getuid()
        if not self._make_room(is_owner=is_owner):
            transport.abort()
            return
        handler = server()
        self._open[handler] = ApiConnection(handler, is_owner, _now())
        transport.set_protocol(handler)
        handler.connection_made(transport)
        asyncio.get_running_loop().call_later(FIRST_REQUEST_SECONDS, self._close_if_silent, handler)

    def _make_room(self, *, is_owner: bool) -> bool:
        others = [each for each in self._open.values() if not each.is_owner]
        if len(self._open) < MAX_CONNECTIONS and (is_owner or len(others) < OTHERS_CONNECTIONS):
            return True
        candidates = self._open.values() if is_owner else others
        idle = [each for each in candidates if not each.answering]
        if not idle:
            return False
        longest = min(idle, key=lambda each: (each.is_owner, each.idle_since))
        del self._open[longest.handler]
        longest.handler.force_close()
        return True

    def _close_if_silent(self, handler: web.RequestHandler) -> None:
        connection = self._open.get(handler)
        if connection is not None and connection.requests == 0:
            del self._open[handler]
            handler.force_close()


class _Gate(asyncio.Protocol):
    """The protocol of a connection until it is admitted."""

    def __init__(self, connections: Connections, server: web.Server) -> None:
        self._connections, self._server = connections, server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connections.admit(transport, self._server)


def _now() -> float:
    return asyncio.get_running_loop().time()
