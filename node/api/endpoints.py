"""The table of the API's endpoints, with the handler of each. Routes and description follow from it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Annotated, TypeVar

import msgspec
from aiohttp import ClientConnectionError, web
from msgspec import UNSET, Meta, Struct, UnsetType

from node.api import openapi
from node.api.answers import health_of
from node.api.connections import Connections
from node.api.endpoint import EVENT_STREAM, JSON, SVG, Endpoint, EndpointHandler, Node
from node.api.event_feed import EventFeed, message_of
from node.api.history import MAX_POINTS
from node.api.join import join_svg
from node.api.links import links_answer
from node.api.metrics import CONTENT_TYPE, metrics_text
from node.api.swarm_summary import swarm_answer
from node.api.types import (
    ErrorAnswer,
    GainsAnswer,
    HealthAnswer,
    HistoryAnswer,
    LinksAnswer,
    NodeStatus,
    PauseAnswer,
    PeersAnswer,
    RolloutsAnswer,
    SamplesAnswer,
    SettingsAnswer,
    StopAnswer,
    SwarmAnswer,
)

RETRY = b"retry: 1000\n\n"  # milliseconds until a reader of events that lost its connection connects again
SLOW_ANSWER = web.AppKey("slow_answer", asyncio.Lock)  # held while an answer is made in a thread
MAX_ORDER_SECONDS = 366 * 86400.0
PAUSE_SECONDS = "pause for so long; without it until resumed"
RESUME_SECONDS = "train for so long, whatever is against it; without it only the owner's pause ends"
CONNECTIONS = web.AppKey("connections", Connections)
Q = TypeVar("Q", bound=Struct)


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the history a request asks for."""

    points: Annotated[int, Meta(ge=2, le=MAX_POINTS, description="at most this many points a series")] = MAX_POINTS
    # Never null, as all of these.
    seconds: Annotated[float, Meta(gt=0, description="only the last this many seconds")] | UnsetType = UNSET


class ResumeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How long a resume holds against the schedule and the machine's use."""

    seconds: Annotated[float, Meta(gt=0, le=MAX_ORDER_SECONDS, description=RESUME_SECONDS)] | UnsetType = UNSET


class PauseQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How long and how soon a node pauses."""

    seconds: Annotated[float, Meta(gt=0, le=MAX_ORDER_SECONDS, description=PAUSE_SECONDS)] | UnsetType = UNSET
    at_once: Annotated[bool, Meta(description="drop the step that is under way")] = False


def _answering(answer_of: Callable[[Node], Struct]) -> EndpointHandler:
    async def on_request(node: Node, _: EventFeed, __: web.Request) -> web.Response:
        return json_response(answer_of(node))

    return on_request


def _answering_in_a_thread(answer_of: Callable[[NodeStatus, PeersAnswer], Struct]) -> EndpointHandler:
    """For answers that many hostile peers make slow."""

    async def on_request(node: Node, _: EventFeed, request: web.Request) -> web.Response:
        status, peers = node.status(), node.peers()
        return await _made_in_a_thread(request, lambda: answer_of(status, peers))

    return on_request


def _settings(node: Node) -> SettingsAnswer:
    status = node.status()
    return SettingsAnswer(status.pid, status.home, node.record.settings)


async def _on_samples(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    if not request.app[CONNECTIONS].is_owner(request):  # questions may be from the owner's own data
        return json_response(ErrorAnswer("only the user that runs this node may read its questions and answers"), 403)
    return json_response(node.record.samples_answer(model=node.status().model))


async def _on_join(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    join = node.status().join
    if join is None or not join.qr:
        because = join.hint if join is not None else "the swarm process does not answer yet"
        return json_response(ErrorAnswer(f"there is no code to join by: {because}"), 404)
    return web.Response(body=join_svg(join.commands), content_type=SVG, headers={"Cache-Control": "no-cache"})


async def _on_history(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    query, history = _decoded(request, HistoryQuery), node.record.history
    seconds = math.inf if query.seconds is UNSET else query.seconds
    marks = node.record.changes.marks.answer(since_seconds=history.since_seconds(seconds))
    return await _made_in_a_thread(request, history.excerpt(points=query.points, seconds=seconds, marks=marks))


async def _on_stop(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    node.request_stop("asked by starling down")
    return json_response(StopAnswer(stopping=True))


async def _on_pause(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    query = _decoded(request, PauseQuery)
    return json_response(PauseAnswer(node.pause(query.seconds or None, at_once=query.at_once)))


async def _on_resume(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    return json_response(PauseAnswer(node.resume(_decoded(request, ResumeQuery).seconds or None)))


async def _on_health(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    answer = health_of(node.status())
    return json_response(answer, 200 if answer.healthy else 503)


async def _on_metrics(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    text = metrics_text(node.status(), node.peers(), node.record.changes.gains())
    return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


async def _on_openapi(_: Node, __: EventFeed, ___: web.Request) -> web.Response:
    return web.Response(body=await asyncio.to_thread(_description), content_type=JSON)


async def _on_events(node: Node, feed: EventFeed, request: web.Request) -> web.StreamResponse:
    def on_drop() -> None:
        if request.transport is not None:  # otherwise the connection is closed already
            request.transport.abort()

    with feed.reader(on_drop, is_owner=request.app[CONNECTIONS].is_owner(request)) as reader:
        if reader is None:
            return json_response(
                ErrorAnswer("too many clients read events already, or the node is stopping: try again later"), 503
            )
        headers = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        with suppress(ConnectionResetError, ClientConnectionError):  # the client left, or was dropped
            await response.prepare(request)
            await response.write(RETRY + message_of("status", msgspec.json.encode(node.status())))
            async for message in reader.messages():
                await response.write(message)
        return response


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/api/v1/status", "This node, now", _answering(lambda node: node.status()), NodeStatus),
    Endpoint(
        "GET",
        "/api/v1/peers",
        "The peers that this node knows, connected ones first",
        _answering(lambda node: node.peers()),
        PeersAnswer,
    ),
    Endpoint("GET", "/api/v1/settings", "What this node runs with", _answering(_settings), SettingsAnswer),
    Endpoint(
        "GET",
        "/api/v1/swarm",
        "The swarm, as its heartbeats report it",
        _answering_in_a_thread(swarm_answer),
        SwarmAnswer,
    ),
    Endpoint(
        "GET",
        "/api/v1/rollouts",
        "The outcomes of recent rollouts, and why some were not used",
        _answering(lambda node: node.record.rollouts.answer(node.status(), node.peers())),
        RolloutsAnswer,
    ),
    Endpoint(
        "GET",
        "/api/v1/gains",
        "What this node can do, could before, and has from whom",
        _answering(lambda node: node.record.changes.gains()),
        GainsAnswer,
    ),
    Endpoint(
        "GET",
        "/api/v1/samples",
        "A question of a recent round with answers, ours and a peer's; for the node's own user",
        _on_samples,
        SamplesAnswer,
    ),
    Endpoint("GET", "/api/v1/links", "Who is connected to whom", _answering_in_a_thread(links_answer), LinksAnswer),
    Endpoint(
        "GET",
        "/api/v1/join.svg",
        "A QR code of the command with which a friend joins",
        _on_join,
        None,
        content_type=SVG,
        refusals={404: ErrorAnswer},
    ),
    Endpoint(
        "GET",
        "/api/v1/history",
        "The run over time, for charts",
        _on_history,
        HistoryAnswer,
        refusals={400: ErrorAnswer},
        query=HistoryQuery,
    ),
    Endpoint(
        "GET",
        "/api/v1/events",
        "Server-sent: a NodeStatus (status) at once and every second, the learner's events, notes, usage",
        _on_events,
        None,
        content_type=EVENT_STREAM,
        refusals={503: ErrorAnswer},
    ),
    Endpoint("GET", "/api/v1/openapi.json", "This description", _on_openapi, None, content_type=JSON),
    Endpoint("POST", "/api/v1/stop", "Stop the node in order; a second request stops it at once", _on_stop, StopAnswer),
    Endpoint(
        "POST",
        "/api/v1/pause",
        "Let the learner finish its step, checkpoint and end; peers stay connected and are served",
        _on_pause,
        PauseAnswer,
        refusals={400: ErrorAnswer},
        query=PauseQuery,
    ),
    Endpoint(
        "POST",
        "/api/v1/resume",
        "End the owner's pause, or train for some time whatever is against it",
        _on_resume,
        PauseAnswer,
        refusals={400: ErrorAnswer},
        query=ResumeQuery,
    ),
    Endpoint("GET", "/health", "Whether the node is healthy", _on_health, HealthAnswer, refusals={503: HealthAnswer}),
    Endpoint("GET", "/metrics", "Prometheus's text format", _on_metrics, None, content_type="text/plain"),
)


def json_response(answer: Struct, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type=JSON)


async def _made_in_a_thread(request: web.Request, make: Callable[[], Struct]) -> web.Response:
    """Makes a slow answer in a thread, one at a time: threads that compute take turns with the event loop, milliseconds
    each, and many of them would delay it."""
    async with request.app[SLOW_ANSWER]:
        body = await asyncio.to_thread(lambda: msgspec.json.encode(make()))
    return web.Response(body=body, content_type=JSON)


@cache
def _description() -> bytes:
    return msgspec.json.encode(openapi.description(ENDPOINTS))


def _decoded(request: web.Request, expected: type[Q]) -> Q:
    """Returns the query as a struct. Raises ``HTTPBadRequest``, also for an unknown key: ignoring it would answer
    another question than the one asked."""
    if len(set(request.query)) < len(request.query):
        raise web.HTTPBadRequest(text="the query gives a key more than once: give each key once")
    try:
        return msgspec.convert(dict(request.query), expected, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(expected.__struct_fields__)
        raise web.HTTPBadRequest(text=f"the query cannot be used: {error}; its keys are {known}") from None
