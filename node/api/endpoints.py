"""The endpoints of the API, and the table of them, from which routes and description follow."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
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
from node.trying.messages import TryRequest
from node.trying.tried import Tried
from protocol.errors import StarlingError

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


ENDPOINTS: list[Endpoint] = []


def _serves(
    path: str,
    answer: type[Struct] | None,  # None: the answer is not JSON
    *,
    method: str = "GET",
    content_type: str = JSON,
    refusals: Mapping[int, type[Struct]] | None = None,
    query: type[Struct] | None = None,
    body: type[Struct] | None = None,
) -> Callable[[EndpointHandler], EndpointHandler]:
    """Adds a handler to the table; its docstring is the endpoint's summary."""

    def added(handler: EndpointHandler) -> EndpointHandler:
        summary = (handler.__doc__ or "").rstrip(".")
        ENDPOINTS.append(Endpoint(method, path, summary, handler, answer, content_type, refusals, query, body))
        return handler

    return added


def _answers(path: str, answer: type[Struct]) -> Callable[[Callable[[Node], Struct]], EndpointHandler]:
    """Adds what answers at once, from the node alone."""

    def added(answer_of: Callable[[Node], Struct]) -> EndpointHandler:
        async def on_request(node: Node, _: EventFeed, __: web.Request) -> web.Response:
            return json_response(answer_of(node))

        on_request.__doc__ = answer_of.__doc__
        return _serves(path, answer)(on_request)

    return added


@_answers("/api/v1/status", NodeStatus)
def _status(node: Node) -> Struct:
    """This node, now."""
    return node.status()


@_answers("/api/v1/peers", PeersAnswer)
def _peers(node: Node) -> Struct:
    """The peers that this node knows, connected ones first."""
    return node.peers()


@_answers("/api/v1/settings", SettingsAnswer)
def _settings(node: Node) -> Struct:
    """What this node runs with."""
    status = node.status()
    return SettingsAnswer(status.pid, status.home, node.record.settings)


@_serves("/api/v1/swarm", SwarmAnswer)
async def _on_swarm(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    """The swarm, as its heartbeats report it."""
    # Many hostile peers make this answer slow.
    return await _made_in_a_thread(request, partial(swarm_answer, node.status(), node.peers()))


@_answers("/api/v1/rollouts", RolloutsAnswer)
def _rollouts(node: Node) -> Struct:
    """The outcomes of recent rollouts, and why some were not used."""
    return node.record.rollouts.answer(node.status(), node.peers())


@_answers("/api/v1/gains", GainsAnswer)
def _gains(node: Node) -> Struct:
    """What this node can do, could before, and has from whom."""
    return node.record.changes.gains()


@_serves("/api/v1/samples", SamplesAnswer)
async def _on_samples(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    """A question of a recent round with answers, ours and a peer's; for the node's own user."""
    if not request.app[CONNECTIONS].is_owner(request):  # questions may be from the owner's own data
        return json_response(ErrorAnswer("only the user that runs this node may read its questions and answers"), 403)
    return json_response(node.record.samples_answer(model=node.status().model))


@_serves("/api/v1/links", LinksAnswer)
async def _on_links(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    """Who is connected to whom."""
    return await _made_in_a_thread(request, partial(links_answer, node.status(), node.peers()))


@_serves("/api/v1/join.svg", None, content_type=SVG, refusals={404: ErrorAnswer})
async def _on_join(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    """A QR code of the command with which a friend joins."""
    join = node.status().join
    if join is None or not join.qr:
        because = join.hint if join is not None else "the swarm process does not answer yet"
        return json_response(ErrorAnswer(f"there is no code to join by: {because}"), 404)
    return web.Response(body=join_svg(join.commands), content_type=SVG, headers={"Cache-Control": "no-cache"})


@_serves("/api/v1/history", HistoryAnswer, refusals={400: ErrorAnswer}, query=HistoryQuery)
async def _on_history(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    """The run over time, for charts."""
    query, history = _decoded(request, HistoryQuery), node.record.history
    seconds = math.inf if query.seconds is UNSET else query.seconds
    marks = node.record.changes.marks.answer(since_seconds=history.since_seconds(seconds))
    return await _made_in_a_thread(request, history.excerpt(points=query.points, seconds=seconds, marks=marks))


@_serves("/api/v1/events", None, content_type=EVENT_STREAM, refusals={503: ErrorAnswer})
async def _on_events(node: Node, feed: EventFeed, request: web.Request) -> web.StreamResponse:
    """Server-sent: a NodeStatus (status) at once and every second, the learner's events, notes, usage."""

    def on_drop() -> None:
        if request.transport is not None:  # otherwise the connection is closed already
            request.transport.abort()

    with feed.reader(on_drop, is_owner=request.app[CONNECTIONS].is_owner(request)) as reader:
        if reader is None:
            because = "too many clients read events already, or the node is stopping: try again later"
            return json_response(ErrorAnswer(because), 503)
        headers = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        with suppress(ConnectionResetError, ClientConnectionError):  # the client left, or was dropped
            await response.prepare(request)
            await response.write(RETRY + message_of("status", msgspec.json.encode(node.status())))
            async for message in reader.messages():
                await response.write(message)
        return response


@_serves("/api/v1/openapi.json", None)
async def _on_openapi(_: Node, __: EventFeed, ___: web.Request) -> web.Response:
    """This description."""
    return web.Response(body=await asyncio.to_thread(_description), content_type=JSON)


@_serves("/api/v1/stop", StopAnswer, method="POST")
async def _on_stop(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    """Stop the node in order; a second request stops it at once."""
    node.request_stop("asked by starling down", typed=True)
    return json_response(StopAnswer(stopping=True))


@_serves("/api/v1/pause", PauseAnswer, method="POST", refusals={400: ErrorAnswer}, query=PauseQuery)
async def _on_pause(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    """Let the learner finish its step, checkpoint and end; peers stay connected and are served."""
    query = _decoded(request, PauseQuery)
    return json_response(PauseAnswer(node.pause(query.seconds or None, at_once=query.at_once)))


@_serves("/api/v1/resume", PauseAnswer, method="POST", refusals={400: ErrorAnswer}, query=ResumeQuery)
async def _on_resume(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    """End the owner's pause, or train for some time whatever is against it."""
    return json_response(PauseAnswer(node.resume(_decoded(request, ResumeQuery).seconds or None)))


@_serves("/api/v1/try", Tried, method="POST", refusals={400: ErrorAnswer, 409: ErrorAnswer}, body=TryRequest)
async def _on_try(node: Node, _: EventFeed, request: web.Request) -> web.Response:
    """Have the base model and a checkpoint answer a question; NodeStatus.trying says what it waits for."""
    try:
        asked = msgspec.json.decode(await request.read(), type=TryRequest)
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=f"the body cannot be used: {error}") from None
    try:
        return json_response(await node.try_model(asked))
    except StarlingError as error:
        return json_response(ErrorAnswer(str(error)), 409)


@_serves("/health", HealthAnswer, refusals={503: HealthAnswer})
async def _on_health(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    """Whether the node is healthy."""
    answer = health_of(node.status())
    return json_response(answer, 200 if answer.healthy else 503)


@_serves("/metrics", None, content_type="text/plain")
async def _on_metrics(node: Node, _: EventFeed, __: web.Request) -> web.Response:
    """Prometheus's text format."""
    text = metrics_text(node.status(), node.peers(), node.record.changes.gains())
    return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


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
