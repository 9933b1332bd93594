"""One question by HTTP to the router, on a connection of its own: no redirects, no reuse, bounded answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import anyio
import h11
from anyio.abc import ByteStream

from protocol.errors import DeadlineError, MalformedError, OversizedError, UnreachableError
from swarm.hosts.routers.upnp_messages import RouterUrl

EXCHANGE_SECONDS: Final = 5.0  # for the whole of it, however slowly the answer drips
ANSWER_BYTES: Final = 1 << 16
RECEIVE_BYTES: Final = 1 << 13


async def exchange(
    url: RouterUrl, method: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[int, bytes]:
    """Returns the status and the body. A redirect is returned as what it is, and not followed.

    Raises ``UnreachableError``, ``DeadlineError``, ``MalformedError``, and ``OversizedError`` above ``ANSWER_BYTES``.
    """
    try:
        with anyio.fail_after(EXCHANGE_SECONDS):
            async with await anyio.connect_tcp(url.ip, url.port) as stream:
                return await exchange_over(stream, url, method, headers, body)
    except TimeoutError as error:
        raise DeadlineError(f"the router did not answer by HTTP within {EXCHANGE_SECONDS:g} s") from error
    except (OSError, anyio.BrokenResourceError) as error:
        raise UnreachableError(f"the router does not answer by HTTP at port {url.port}") from error


async def exchange_over(
    stream: ByteStream, url: RouterUrl, method: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[int, bytes]:
    """As ``exchange``, on a connection that stands, for as long as it takes."""
    sent = {"Host": f"{url.ip}:{url.port}", "Connection": "close", **(headers or {})}
    if body:
        sent |= {"Content-Length": str(len(body)), "Content-Type": 'text/xml; charset="utf-8"'}
    try:
        connection = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target=url.path, headers=list(sent.items()))
        out = [connection.send(request), connection.send(h11.Data(body)), connection.send(h11.EndOfMessage())]
        await stream.send(b"".join(part for part in out if part))
        return await _receive(connection, stream)
    except h11.ProtocolError as error:
        raise MalformedError("the router's answer is not HTTP") from error


async def _receive(connection: h11.Connection, stream: ByteStream) -> tuple[int, bytes]:
    status, body, received_bytes = 0, bytearray(), 0
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif event is h11.NEED_DATA:
            try:
                chunk = await stream.receive(RECEIVE_BYTES)
            except anyio.EndOfStream:
                chunk = b""
            received_bytes += len(chunk)
            if received_bytes > ANSWER_BYTES:
                raise OversizedError(f"the router's answer has more than {ANSWER_BYTES} bytes")
            connection.receive_data(chunk)
        elif not isinstance(event, h11.InformationalResponse):
            return status, bytes(body)
