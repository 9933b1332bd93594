"""One endpoint of the API: its address, the types of its answers, and the handler that makes them.

``node.api.endpoints`` lists the endpoints, ``node.api.openapi`` describes them, ``node.api.server`` serves them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from msgspec import Struct

from node.api.event_feed import EventFeed
from node.api.record import RunRecord
from node.api.types import NodeStatus, Paused, PeersAnswer
from node.trying.messages import TryRequest
from node.trying.tried import Tried

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
SVG = "image/svg+xml"


class Node(Protocol):
    """What the API needs of the supervisor."""

    @property
    def record(self) -> RunRecord: ...

    def status(self) -> NodeStatus: ...

    def peers(self) -> PeersAnswer: ...

    def request_stop(self, because: str, *, typed: bool) -> None: ...

    def pause(self, for_seconds: float | None, *, at_once: bool) -> Paused | None: ...

    def resume(self, for_seconds: float | None) -> Paused | None: ...

    async def try_model(self, request: TryRequest) -> Tried: ...


EndpointHandler = Callable[[Node, EventFeed, web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    summary: str
    handler: EndpointHandler
    answer: type[Struct] | None  # None: the answer is not JSON
    content_type: str = JSON
    refusals: Mapping[int, type[Struct]] | None = None  # by HTTP status, beside those that every endpoint has
    query: type[Struct] | None = None
    body: type[Struct] | None = None  # of the request, as JSON
