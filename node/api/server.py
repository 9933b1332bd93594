"""The node's HTTP API: always on a Unix socket in the data directory, and on 127.0.0.1 where a port is configured.

``endpoints.ENDPOINTS`` lists the endpoints, ``/api/v1/openapi.json`` describes them. Every refusal is JSON with a
reason and a remedy. A bug of ours in one answer is logged and answered with 500; everything else keeps running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from node.api.access import guard
from node.api.connections import IDLE_SECONDS, Connections
from node.api.endpoint import EVENT_STREAM, Endpoint, Node
from node.api.endpoints import CONNECTIONS, ENDPOINTS, SLOW_ANSWER, json_response
from node.api.event_feed import EventFeed
from node.api.page import add_page
from node.api.types import ErrorAnswer
from protocol.errors import StorageError, UnreachableError

SHUTDOWN_SECONDS = 1.0  # for answers that are being made
LOOPBACK = "127.0.0.1"

log = logging.getLogger(__name__)


def application(node: Node, feed: EventFeed, *, token: str | None = None) -> web.Application:
    """Returns the API of ``node``. With a ``token`` it is guarded (``access.guard``) and has the web page, for TCP."""
    middlewares = [_connection_in_use, _errors_as_json]
    app = web.Application(middlewares=middlewares if token is None else [*middlewares, guard(token)])
    app[SLOW_ANSWER] = asyncio.Lock()
    app[CONNECTIONS] = Connections()
    for endpoint in ENDPOINTS:
        bound = _bound(endpoint, node, feed)
        if endpoint.method == "GET":
            app.router.add_get(endpoint.path, bound, allow_head=endpoint.content_type != EVENT_STREAM)
        else:
            app.router.add_route(endpoint.method, endpoint.path, bound)
    if token is not None:  # a browser connects over TCP
        add_page(app.router)

    async def on_shutdown(_: web.Application) -> None:
        feed.close()

    app.on_shutdown.append(on_shutdown)
    return app


@asynccontextmanager
async def served(
    node: Node, feed: EventFeed, path: Path, *, ports: Sequence[int] = (), token: str = ""
) -> AsyncIterator[int | None]:
    """Serves the API from entry to exit: on the socket ``path``, and on the first free one of ``ports`` of 127.0.0.1,
    which it gives; None without ``ports``.

    The caller holds the lock of the data directory, so an old socket belongs to no running node and is replaced; ours
    is removed at the end. Raises ``StorageError`` where no socket can be made, ``UnreachableError`` where every port is
    taken.
    """
    if ports and not token:
        raise ValueError("an API on a port needs a token")
    async with AsyncExitStack() as stack:
        stack.callback(path.unlink, missing_ok=True)  # last: a command that finds no socket asks the lock
        server, loop = await _server(stack, application(node, feed)), asyncio.get_running_loop()
        try:
            listening = await loop.create_unix_server(server, path)
        except OSError as error:
            raise StorageError(f"no socket can be made at {path}: {error}") from None
        stack.push_async_callback(_stop_listening, listening)
        yield await _on_port(stack, application(node, feed, token=token), ports) if ports else None


async def _on_port(stack: AsyncExitStack, app: web.Application, ports: Sequence[int]) -> int:
    protocol, loop = app[CONNECTIONS].protocol_of(await _server(stack, app)), asyncio.get_running_loop()
    because = ""
    for port in ports:
        try:
            listening = await loop.create_server(protocol, LOOPBACK, port)
        except OSError as error:
            because = because or f"{LOOPBACK}:{port} ({error.strerror})"
        else:
            stack.push_async_callback(_stop_listening, listening)  # before the runner ends the connections
            return port
    others = f", nor on {len(ports) - 1} others" if len(ports) > 1 else ""
    raise UnreachableError(
        f"the API cannot listen on {because}{others}: set api.port to a free port, or to 0 for no port"
    )


async def _stop_listening(listening: asyncio.Server) -> None:
    """Closes ``listening`` once every connection that asyncio has accepted is the server's, which ends it. Python 3.11
    would keep one whose transport it has yet to make open, and raise."""
    for each in listening.sockets:
        asyncio.get_running_loop().remove_reader(each)
    await asyncio.sleep(0)
    listening.close()


async def _server(stack: AsyncExitStack, app: web.Application) -> web.Server:
    """Returns what makes the protocol of each connection to ``app``; ``stack`` ends the connections."""
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=IDLE_SECONDS,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    return runner.server


def _bound(endpoint: Endpoint, node: Node, feed: EventFeed) -> Handler:
    async def on_request(request: web.Request) -> web.StreamResponse:
        return await endpoint.handler(node, feed, request)

    return on_request


@web.middleware
async def _connection_in_use(request: web.Request, handler: Handler) -> web.StreamResponse:
    with request.app[CONNECTIONS].answering(request):
        return await handler(request)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers every failure of ``handler`` with a JSON ``ErrorAnswer``."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = json_response(ErrorAnswer(f"this address does not take {error.method}: send {allowed}"), error.status)
        answer.headers["Allow"] = allowed
        return answer
    except web.HTTPNotFound as error:
        return json_response(ErrorAnswer("this address does not exist: see /api/v1/openapi.json"), error.status)
    except web.HTTPBadRequest as error:
        return json_response(ErrorAnswer(error.text or "the request cannot be used: correct it"), error.status)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return json_response(ErrorAnswer(f"{error.reason}: correct the request"), error.status)
    except Exception:
        log.exception("%s %s could not be answered", request.method, request.path)
        because = "an internal error of the node, which keeps running: see its log, and report it"
        return json_response(ErrorAnswer(because), 500)
