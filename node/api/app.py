"""The node's HTTP API, as an aiohttp application that any site can serve; now a Unix socket in the data directory.

GET  /api/v1/status   NodeStatus
GET  /api/v1/peers    PeersAnswer
POST /api/v1/stop     StopAnswer
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import web

from node.api.status import NodeStatus, PeersAnswer, StopAnswer
from protocol.errors import StorageError

SHUTDOWN_SECONDS = 1.0  # for answers under way


class Node(Protocol):
    """What the API needs of the supervisor."""

    def status(self) -> NodeStatus: ...

    def peers(self) -> PeersAnswer: ...

    def request_stop(self, because: str) -> None: ...


def application(node: Node) -> web.Application:
    """The routes, bound to ``node``."""

    async def stop(_: web.Request) -> web.Response:
        node.request_stop("asked by starling down")
        return _json(StopAnswer(stopping=True))

    app = web.Application()
    app.router.add_get("/api/v1/status", _answer(node.status))
    app.router.add_get("/api/v1/peers", _answer(node.peers))
    app.router.add_post("/api/v1/stop", stop)
    return app


@asynccontextmanager
async def served_on_socket(node: Node, path: Path) -> AsyncIterator[None]:
    """Serves the API on ``path`` from entry to exit. The caller holds the data directory's lock, so an old socket is
    nobody's and is replaced. Raises ``StorageError`` where none can be made."""
    runner = web.AppRunner(application(node), handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        try:
            await web.UnixSite(runner, path).start()
        except OSError as error:
            raise StorageError(f"no socket can be made at {path}: {error}") from None
        yield
    finally:
        await runner.cleanup()


def _answer(read: Callable[[], msgspec.Struct]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(_: web.Request) -> web.StreamResponse:
        return _json(read())

    return handler


def _json(answer: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
