"""Requests to the daemon over its control socket, one connection each.

A connection per request costs a tenth of a millisecond and keeps requests apart: one that is cancelled cannot leave its
answer to another. Both ends of every connection are checked: the process at the other end must be the daemon that this
host started. What the daemon sends is bounded and decoded; anything else ends the host with ``HostEndedError``.
"""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, SocketStream

from protocol.errors import HostEndedError, ProtocolError
from swarm.hosts.go import daemon_messages as messages
from swarm.socket_peer import is_process

RECEIVE_BYTES = 1 << 16
LOCAL_SECONDS = 5.0  # for an answer that needs nobody but the daemon


class Frames:
    """Reads whole messages from a connection, and says which bytes came behind the last one."""

    def __init__(self, connection: SocketStream) -> None:
        self._connection = connection
        self._arrived = bytearray()

    async def next(self) -> bytes:
        """Raises ``HostEndedError`` if the connection ends, or holds what is no message."""
        try:
            while (frame := messages.frame_of(self._arrived)) is None:
                self._arrived += await self._connection.receive(RECEIVE_BYTES)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise HostEndedError("the daemon p2pd closed a control connection") from error
        except ProtocolError as error:
            raise rubbish(error) from error
        start, end = frame
        message = bytes(self._arrived[start:end])
        del self._arrived[:end]
        return message

    def rest(self) -> bytes:
        """Returns what arrived behind the last message, and forgets it."""
        rest = bytes(self._arrived)
        self._arrived.clear()
        return rest


def rubbish(error: ProtocolError) -> HostEndedError:
    return HostEndedError(f"the daemon p2pd sent what is no message of its protocol: {error}")


class ControlSocket:
    """The daemon's control socket at ``path``; ``pid`` is the daemon's."""

    def __init__(self, path: Path, pid: int) -> None:
        self._path = path
        self._pid = pid

    async def request(self, message: bytes) -> messages.DaemonAnswer:
        """Returns the daemon's answer. Raises ``HostEndedError`` if there is none."""
        async with self.conversation(message) as (_, answer, _):
            return answer
        raise AssertionError("unreachable")

    def request_at_once(self, message: bytes) -> messages.DaemonAnswer:
        """As ``request``, for what the daemon answers in a moment: blocks the loop instead of another task's turn."""
        arrived = bytearray()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(LOCAL_SECONDS)
                connection.connect(str(self._path))
                self._check(connection)
                connection.sendall(messages.framed(message))
                while (frame := messages.frame_of(arrived)) is None:
                    piece = connection.recv(RECEIVE_BYTES)
                    if not piece:
                        raise HostEndedError("the daemon p2pd closed a control connection")
                    arrived += piece
            return messages.read_answer(bytes(arrived[frame[0] : frame[1]]))
        except OSError as error:
            raise HostEndedError(f"the daemon p2pd does not answer: {error}") from error
        except ProtocolError as error:
            raise rubbish(error) from error

    @asynccontextmanager
    async def conversation(self, message: bytes) -> AsyncIterator[tuple[SocketStream, messages.DaemonAnswer, Frames]]:
        """Yields the connection after the answer to ``message``, and closes it at the end."""
        connection, answer, frames = await self.open(message)
        try:
            yield connection, answer, frames
        finally:
            await close(connection)

    async def open(self, message: bytes) -> tuple[SocketStream, messages.DaemonAnswer, Frames]:
        """As ``conversation``; the caller closes the connection."""
        try:
            connection = await anyio.connect_unix(self._path)
        except OSError as error:
            raise HostEndedError(f"the daemon p2pd does not answer: {error}") from error
        try:
            self._check(connection.extra(SocketAttribute.raw_socket))
            frames = Frames(connection)
            try:
                await connection.send(messages.framed(message))
            except anyio.BrokenResourceError as error:
                raise HostEndedError("the daemon p2pd closed a control connection") from error
            answer = await frames.next()
            try:
                return connection, messages.read_answer(answer), frames
            except ProtocolError as error:
                raise rubbish(error) from error
        except BaseException:
            await close(connection)
            raise

    def _check(self, connection: socket.socket) -> None:
        if not is_process(connection, self._pid):
            raise HostEndedError(f"{self._path} belongs to another process than the daemon that this host started")


async def close(connection: SocketStream) -> None:
    with anyio.CancelScope(shield=True):
        await connection.aclose()


def whole_seconds(seconds: float) -> int:
    """Returns a time limit as the daemon takes it."""
    return max(1, math.ceil(seconds))


def one_line(error: str) -> str:
    """Returns what the daemon says of a failure, in a line of bounded length."""
    return " ".join(error.split())[:300]
