"""Serves clients on the Unix socket of the data directory: a u32 length (big-endian) and MessagePack, both ways.

Connections are served concurrently, the requests of one connection one after another. A request is cancelled when its
connection ends. Only the owner may connect (mode 0600). A socket file that a killed process left behind is replaced; a
socket that answers belongs to another node, which is an error.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ByteStream, SocketStream

from protocol.errors import ConfigurationError, StarlingError, StorageError
from swarm import api

log = logging.getLogger(__name__)

SOCKET_PATH_BYTES = 103  # the limit of macOS; Linux allows four more
_LENGTH = struct.Struct(">I")

Answer = Callable[[api.Request], Awaitable[api.Reply]]
# A donor's peer id, the connection that becomes its stream, and the reply that is to be sent there first.
Carry = Callable[[str, ByteStream, bytes], Awaitable[None]]


@asynccontextmanager
async def serving(path: Path, answer: Answer, carry: Carry | None = None) -> AsyncIterator[None]:
    """Serves until the block ends, then removes the socket. A connection that was answered ``api.Carrying`` goes to
    ``carry`` and is closed after it. Raises ``ConfigurationError`` or ``StorageError``."""
    _check_free(path)
    try:
        listener = await anyio.create_unix_listener(path, mode=0o600)
    except OSError as error:
        raise StorageError(f"cannot make the socket {path}: {error.strerror or error}") from error
    try:
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, lambda stream: _serve(stream, answer, carry), tasks)
            yield
            tasks.cancel_scope.cancel()
    finally:
        path.unlink(missing_ok=True)  # noqa: ASYNC240  one name, no waiting


def _check_free(path: Path) -> None:
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise ConfigurationError(
            f"the path of the socket {path} has {len(os.fsencode(path))} bytes, at most {SOCKET_PATH_BYTES} are "
            "allowed: choose a shorter data directory (STARLING_HOME)"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise ConfigurationError(f"another swarm process answers on {path}: stop it, or choose another data directory")


async def _serve(stream: SocketStream, answer: Answer, carry: Carry | None) -> None:
    received = bytearray()  # received and not yet used
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with stream:
            while True:
                (length,) = _LENGTH.unpack(await _take(stream, received, _LENGTH.size))
                if length > api.MAX_FRAME_BYTES:
                    log.warning("closed a client that sent %d bytes, over %d", length, api.MAX_FRAME_BYTES)
                    return
                frame = await _take(stream, received, length)
                reply = await _reply_while_connected(stream, received, frame, answer)
                if reply is None:
                    return
                encoded = msgspec.msgpack.encode(reply)
                replied = _LENGTH.pack(len(encoded)) + encoded
                if isinstance(reply, api.Carrying) and carry is not None:
                    await carry(reply.peer, stream, replied)
                    return
                await stream.send(replied)


async def _reply_while_connected(
    stream: SocketStream, received: bytearray, frame: bytes, answer: Answer
) -> api.Reply | None:
    """Returns the reply, or None if the client closed its connection; its request is cancelled then."""
    reply: api.Reply | None = None
    async with anyio.create_task_group() as tasks:

        async def cancel_at_end() -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while len(received) <= api.MAX_FRAME_BYTES:  # a client that sends more is dropped
                    received.extend(await stream.receive())
            tasks.cancel_scope.cancel()

        tasks.start_soon(cancel_at_end)
        reply = await _reply(frame, answer)
        tasks.cancel_scope.cancel()
    return reply


async def _reply(frame: bytes, answer: Answer) -> api.Reply:
    try:
        request: api.Request = msgspec.msgpack.decode(frame, type=api.Request)
    except msgspec.DecodeError as error:
        return api.RequestRefused(
            "malformed", f"the swarm process does not understand the request ({error}): restart the node"
        )
    try:
        return await answer(request)
    except StarlingError as error:
        return api.RequestRefused(error.reason, str(error))


async def _take(stream: SocketStream, received: bytearray, size: int) -> bytes:
    """Returns the next ``size`` bytes: those received already, then those of the stream."""
    while len(received) < size:
        received += await stream.receive(min(size - len(received), 1 << 20))
    taken = bytes(received[:size])
    del received[:size]
    return taken
