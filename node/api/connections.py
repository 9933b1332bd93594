"""Bounds the connections to the API on TCP, which every user of this machine can open.

    at most MAX_CONNECTIONS in all, at most OTHERS_CONNECTIONS of them from other users than the node's own
    the first whole request within FIRST_REQUEST_SECONDS; between two requests at most IDLE_SECONDS

So the descriptors that the node needs for its files and children stay free, and no other user can lock the owner out.
Where there is no room, the connection that has been idle longest makes room, of another user first; if none is idle,
the new one is closed at once. Where the system does not say who connects, all are treated as the owner's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from node.api.socket_owner import Address, user_of

MAX_CONNECTIONS: Final = 128
OTHERS_CONNECTIONS: Final = 64
FIRST_REQUEST_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 15.0


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
