"""Every endpoint of the API, once: what it answers, in which types, and how. Routes and description follow from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Protocol, TypeVar

import msgspec
from aiohttp import ClientConnectionError, web
from msgspec import Meta, Struct

from node.api import openapi
from node.api.answers import health_of
from node.api.event_feed import EventFeed, message_of
from node.api.history import MAX_POINTS
from node.api.metrics import CONTENT_TYPE, metrics_text
from node.api.record import Record
from node.api.swarm_summary import swarm_answer
from node.api.types import (
    ErrorAnswer,
    HealthAnswer,
    HistoryAnswer,
    NodeStatus,
    PeersAnswer,
    RolloutsAnswer,
    StopAnswer,
    SwarmAnswer,
)

RETRY = b"retry: 1000\n\n"  # milliseconds until a reader of events that lost its connection comes back
JSON = "application/json"
EVENT_STREAM = "text/event-stream"
ASIDE = web.AppKey("aside", asyncio.Lock)
Q = TypeVar("Q", bound=Struct)


class Node(Protocol):
    """What the API needs of the supervisor."""

    @property
    def record(self) -> Record: ...

    def status(self) -> NodeStatus: ...

    def peers(self) -> PeersAnswer: ...

    def request_stop(self, because: str) -> None: ...


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What of the history is asked for."""

    points: Annotated[int, Meta(ge=2, le=MAX_POINTS, description="at most so many points a series")] = MAX_POINTS
    seconds: Annotated[float, Meta(gt=0, description="only the last so many seconds")] | None = None


Handler = Callable[[Node, EventFeed, web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    summary: str
    handler: Handler
    answer: type[Struct] | None  # None: not JSON
    content_type: str = JSON
    refusals: Mapping[int, type[Struct]] | None = (
        None  # answers of other kinds than 200, beside those of every endpoint
    )
    query: type[Struct] | None = None


async def _status(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    return json_response(node.status())


async def _peers(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    return json_response(node.peers())


async def _swarm(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    return await _aside(request, partial(swarm_answer, node.status(), node.peers()))  # long with many hostile peers


async def _rollouts(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    return json_response(node.record.rollouts.answer(node.status(), node.peers()))


async def _history(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    query = _decoded(request, HistoryQuery)
    if isinstance(query, web.Response):
        return query
    history = node.record.history
    excerpt = history.excerpt() if query.seconds is None else history.excerpt(seconds=query.seconds)
    return await _aside(request, partial(excerpt.answer, query.points))


async def _stop(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    node.request_stop("asked by starling down")
    return json_response(StopAnswer(stopping=True))


async def _health(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    answer = health_of(node.status())
    return json_response(answer, 200 if answer.healthy else 503)


async def _metrics(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    text = metrics_text(node.status(), node.peers())
    return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


async def _openapi(_: Node, __: EventFeed, ___: web.Request) -> web.Response:
    return web.Response(body=await asyncio.to_thread(_description), content_type=JSON)


async def _events(node: Node, feed: EventFeed, request: web.Request) -> web.StreamResponse:
    def abort() -> None:
        if request.transport is not None:  # else it is gone already
            request.transport.abort()

    with feed.reader(abort) as reader:
        if reader is None:
            return json_response(
                ErrorAnswer("too many read events already, or the node is stopping: try again later"), 503
            )
        headers = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        with suppress(ConnectionResetError, ClientConnectionError):  # it left, or was dropped
            await response.prepare(request)
            await response.write(RETRY + message_of("status", msgspec.json.encode(node.status())))
            async for message in reader.messages():
                await response.write(message)
        return response


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/api/v1/status", "This node, now", _status, NodeStatus),
    Endpoint("GET", "/api/v1/peers", "The peers that this node knows, connected ones first", _peers, PeersAnswer),
    Endpoint("GET", "/api/v1/swarm", "The swarm, as far as heartbeats tell", _swarm, SwarmAnswer),
    Endpoint(
        "GET",
        "/api/v1/rollouts",
        "What became of rollouts lately, and why some were not used",
        _rollouts,
        RolloutsAnswer,
    ),
    Endpoint(
        "GET",
        "/api/v1/history",
        "The run over time, for charts",
        _history,
        HistoryAnswer,
        refusals={400: ErrorAnswer},
        query=HistoryQuery,
    ),
    Endpoint(
        "GET",
        "/api/v1/events",
        "Server-sent: a NodeStatus (status) at once and every second, the learner's events, notes, usage",
        _events,
        None,
        content_type=EVENT_STREAM,
        refusals={503: ErrorAnswer},
    ),
    Endpoint("GET", "/api/v1/openapi.json", "This description", _openapi, None, content_type=JSON),
    Endpoint("POST", "/api/v1/stop", "End the node in order; twice: at once", _stop, StopAnswer),
    Endpoint("GET", "/health", "Whether the node is healthy", _health, HealthAnswer, refusals={503: HealthAnswer}),
    Endpoint("GET", "/metrics", "Prometheus's text format", _metrics, None, content_type="text/plain"),
)


def json_response(answer: Struct, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type=JSON)


async def _aside(request: web.Request, make: Callable[[], Struct]) -> web.Response:
    """An answer that takes long, made in a thread. One at a time: threads that compute take turns with the loop, each
    for milliseconds, and many of them would hold it up."""
    async with request.app[ASIDE]:
        body = await asyncio.to_thread(lambda: msgspec.json.encode(make()))
    return web.Response(body=body, content_type=JSON)


@cache
def _description() -> bytes:
    return msgspec.json.encode(openapi.description(ENDPOINTS))


def _decoded(request: web.Request, expected: type[Q]) -> Q | web.Response:
    """The query as a struct, or its refusal: a misspelt key would change the answer in silence."""
    if len(set(request.query)) < len(request.query):
        return json_response(ErrorAnswer("a key of the query is given more than once: give each once"), 400)
    try:
        return msgspec.convert(dict(request.query), expected, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(expected.__struct_fields__)
        return json_response(ErrorAnswer(f"the query cannot be used: {error}; its keys are {known}"), 400)
