"""The description of the API, OpenAPI 3.1, generated from a table of endpoints and their types, so that both agree.

https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct

from node.api.endpoint import JSON, SVG, Endpoint
from node.api.types import ErrorAnswer, Note
from node.events import Event, PeersChanged, Usage
from node.version import VERSION

EVENTS: tuple[type[Struct], ...] = (*get_args(Event), Usage, PeersChanged, Note)
OF_EVERY_ENDPOINT: Mapping[int, type[Struct]] = {403: ErrorAnswer, 500: ErrorAnswer}
REFERENCE = "#/components/schemas/{name}"
MEANINGS = {
    200: "the answer",
    400: "the query cannot be used",
    401: "the request changes the node and needs the token",
    403: "the request is addressed to a host other than this machine, or is for the node's own user alone",
    404: "there is none now",
    409: "it cannot be done now",
    500: "an internal error of the node, which keeps running",
    503: "not available now",
}


def description(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Returns the OpenAPI document of ``endpoints``."""
    types: list[type[Struct]] = list(dict.fromkeys([*_types_of(endpoints), *EVENTS, ErrorAnswer]))
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "starling",
            "version": VERSION,
            "description": "What a node does, which peers it knows, and the swarm as it sees it. Every user of this "
            "machine may read; a request that changes the node needs the token in HOME/api.token.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types_of(endpoints: Iterable[Endpoint]) -> Iterable[type[Struct]]:
    for endpoint in endpoints:
        answers = (endpoint.answer, endpoint.body, *(endpoint.refusals or {}).values())
        yield from (answer for answer in answers if answer is not None)


def _operation(endpoint: Endpoint, schema_of: Mapping[type[Struct], Any]) -> dict[str, Any]:
    changes = endpoint.method not in ("GET", "HEAD")
    answer = schema_of[endpoint.answer] if endpoint.answer else {}
    if endpoint.answer is None and (endpoint.content_type.startswith("text/") or endpoint.content_type == SVG):
        answer = {"type": "string"}
    others: dict[int, type[Struct]] = {
        **OF_EVERY_ENDPOINT,
        **({401: ErrorAnswer} if changes else {}),
        **(endpoint.refusals or {}),
    }
    responses = {"200": _response(200, endpoint.content_type, answer)}
    responses |= {
        str(status): _response(status, JSON, schema_of[answer_type]) for status, answer_type in sorted(others.items())
    }
    operation: dict[str, Any] = {
        "operationId": endpoint.path.rpartition("/")[2].partition(".")[0],
        "summary": endpoint.summary,
        "responses": responses,
    }
    if endpoint.query is not None:
        operation["parameters"] = _parameters(endpoint.query)
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[endpoint.body]}}}
    if changes:
        operation["security"] = [{"token": []}]
    return operation


def _response(status: int, content_type: str, schema: Any) -> dict[str, Any]:
    return {"description": MEANINGS[status], "content": {content_type: {"schema": schema}}}


def _parameters(query: type[Struct]) -> list[dict[str, Any]]:
    """Returns one parameter for each field. Each has a default; the type of "not given" is left out."""
    _, components = msgspec.json.schema_components([query], ref_template=REFERENCE)
    parameters = []
    for name, schema in components[query.__name__]["properties"].items():
        given = next((choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"), schema)
        parameters.append({"name": name, "in": "query", "required": False, "schema": given})
    return parameters
