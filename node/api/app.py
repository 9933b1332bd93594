"""The node's HTTP API: always on a Unix socket in the data directory, and on 127.0.0.1 where a port is configured.

GET  /api/v1/status   NodeStatus
GET  /api/v1/peers    PeersAnswer
GET  /api/v1/events   server-sent: a NodeStatus ("status") at once and every second, the learner's events, notes
POST /api/v1/stop     StopAnswer
GET  /health          HealthAnswer; status 503 where the node is not healthy
GET  /metrics         Prometheus's text format
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import ClientConnectionError, web

from node.api.access import guard
from node.api.event_feed import EventFeed, message_of
from node.api.metrics import CONTENT_TYPE, metrics_text
from node.api.status import NodeStatus, PeersAnswer, Refusal, StopAnswer, health_of
from protocol.errors import StorageError, UnreachableError

SHUTDOWN_SECONDS = 1.0  # for answers under way
RETRY = b"retry: 1000\n\n"  # milliseconds until a reader of events that lost its connection comes back
LOOPBACK = "127.0.0.1"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Node(Protocol):
    """What the API needs of the supervisor."""

    def status(self) -> NodeStatus: ...

    def peers(self) -> PeersAnswer: ...

    def request_stop(self, because: str) -> None: ...


def application(node: Node, feed: EventFeed, *, token: str | None = None) -> web.Application:
    """The routes, bound to ``node``. With a ``token`` they are guarded as TCP needs it."""

    async def stop(_: web.Request) -> web.Response:
        node.request_stop("asked by starling down")
        return _json(StopAnswer(stopping=True))

    async def health(_: web.Request) -> web.Response:
        answer = health_of(node.status())
        return _json(answer, 200 if answer.healthy else 503)

    async def metrics(_: web.Request) -> web.Response:
        text = metrics_text(node.status(), node.peers())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(middlewares=[] if token is None else [guard(token)])
    app.router.add_get("/api/v1/status", _answer(node.status))
    app.router.add_get("/api/v1/peers", _answer(node.peers))
    app.router.add_get("/api/v1/events", _events(node, feed), allow_head=False)
    app.router.add_post("/api/v1/stop", stop)
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)

    async def end_streams(_: web.Application) -> None:
        feed.close()

    app.on_shutdown.append(end_streams)
    return app


@asynccontextmanager
async def served(node: Node, feed: EventFeed, path: Path, *, port: int = 0, token: str = "") -> AsyncIterator[None]:
    """Serves the API on the socket ``path``, and on ``port`` of 127.0.0.1 unless that is 0, from entry to exit.

    The caller holds the data directory's lock, so an old socket is nobody's and is replaced. Raises ``StorageError``
    where no socket can be made, ``UnreachableError`` where the port is taken.
    """
    if port and not token:
        raise ValueError("the API on a port needs a token")
    async with AsyncExitStack() as stack:
        try:
            await web.UnixSite(await _runner(stack, application(node, feed)), path).start()
        except OSError as error:
            raise StorageError(f"no socket can be made at {path}: {error}") from None
        if port:
            runner = await _runner(stack, application(node, feed, token=token))
            try:
                await web.TCPSite(runner, LOOPBACK, port).start()
            except OSError as error:
                raise UnreachableError(
                    f"the API cannot listen on {LOOPBACK}:{port} ({error.strerror}): set api.port to a free one, or to "
                    "0 for none"
                ) from None
        yield


async def _runner(stack: AsyncExitStack, app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


def _events(node: Node, feed: EventFeed) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        def abort() -> None:
            if request.transport is not None:  # else it is gone already
                request.transport.abort()

        with feed.reader(abort) as reader:
            if reader is None:
                return _json(Refusal("too many read events already, or the node is stopping: try again later"), 503)
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            response = web.StreamResponse(headers=headers)
            with suppress(ConnectionResetError, ClientConnectionError):  # it left, or was dropped
                await response.prepare(request)
                await response.write(RETRY + message_of("status", msgspec.json.encode(node.status())))
                async for message in reader.messages():
                    await response.write(message)
            return response

    return handler


def _answer(read: Callable[[], msgspec.Struct]) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return _json(read())

    return handler


def _json(answer: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type="application/json")
