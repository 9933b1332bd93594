"""The node's HTTP API: always on a Unix socket in the data directory, and on 127.0.0.1 where a port is configured.

``endpoints.ENDPOINTS`` lists what there is, ``/api/v1/openapi.json`` describes it. Every refusal is JSON with a reason
and what to do; a fault of ours in one answer is logged, told as such, and ends nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

from node.api.access import guard
from node.api.endpoints import ASIDE, ENDPOINTS, EVENT_STREAM, Endpoint, Node, json_response
from node.api.event_feed import EventFeed
from node.api.page import add_page
from node.api.types import ErrorAnswer
from protocol.errors import StorageError, UnreachableError

SHUTDOWN_SECONDS = 1.0  # for answers under way
LOOPBACK = "127.0.0.1"

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(node: Node, feed: EventFeed, *, token: str | None = None) -> web.Application:
    """The routes, bound to ``node``. With a ``token`` they are guarded as TCP needs it."""
    app = web.Application(middlewares=[_told] if token is None else [_told, guard(token)])
    app[ASIDE] = asyncio.Lock()
    for endpoint in ENDPOINTS:
        bound = _bound(endpoint, node, feed)
        if endpoint.method == "GET":
            app.router.add_get(endpoint.path, bound, allow_head=endpoint.content_type != EVENT_STREAM)
        else:
            app.router.add_route(endpoint.method, endpoint.path, bound)
    if token is not None:  # a browser comes by TCP
        add_page(app.router)

    async def end_streams(_: web.Application) -> None:
        feed.close()

    app.on_shutdown.append(end_streams)
    return app


@asynccontextmanager
async def served(
    node: Node, feed: EventFeed, path: Path, *, ports: Sequence[int] = (), token: str = ""
) -> AsyncIterator[int | None]:
    """Serves the API on the socket ``path``, and on the first of ``ports`` of 127.0.0.1 that is free, which it gives.

    From entry to exit. The caller holds the data directory's lock, so an old socket is nobody's and is replaced. Raises
    ``StorageError`` where no socket can be made, ``UnreachableError`` where every port is taken.
    """
    if ports and not token:
        raise ValueError("the API on a port needs a token")
    async with AsyncExitStack() as stack:
        try:
            await web.UnixSite(await _runner(stack, application(node, feed)), path).start()
        except OSError as error:
            raise StorageError(f"no socket can be made at {path}: {error}") from None
        yield await _on_port(await _runner(stack, application(node, feed, token=token)), ports) if ports else None


async def _on_port(runner: web.AppRunner, ports: Sequence[int]) -> int:
    because = ""
    for port in ports:
        try:
            await web.TCPSite(runner, LOOPBACK, port).start()
        except OSError as error:
            because = because or f"{LOOPBACK}:{port} ({error.strerror})"
        else:
            return port
    raise UnreachableError(
        f"the API cannot listen on {because}, nor on the {len(ports) - 1} ports behind it: set api.port to a free one, "
        "or to 0 for none"
    )


async def _runner(stack: AsyncExitStack, app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


def _bound(endpoint: Endpoint, node: Node, feed: EventFeed) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await endpoint.handler(node, feed, request)

    return handler


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Makes an answer of every failure."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = json_response(
            ErrorAnswer(f"{error.method} is not for this address, which takes {allowed}"), error.status
        )
        answer.headers["Allow"] = allowed
        return answer
    except web.HTTPNotFound as error:
        return json_response(ErrorAnswer("there is nothing at this address: see /api/v1/openapi.json"), error.status)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return json_response(ErrorAnswer(f"{error.reason}: send it differently"), error.status)
    except Exception:
        log.exception("%s %s could not be answered", request.method, request.path)
        because = "a fault of the node's own, which goes on; its log says more: please report it"
        return json_response(ErrorAnswer(because), 500)
