"""Frames of the engine's protocol over a stream: here a Unix socket, whose calls have time limits."""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Final, Protocol

from protocol.errors import DeadlineError, UnreachableError
from protocol.streams.engine_messages import ENGINE_PROTOCOL
from protocol.streams.framing import LENGTH_BYTES, checked_body_length, framed

_READ_BYTES = 1 << 20
_CREDENTIALS: Final = struct.Struct("3i")  # of the other end: process, user, group


class Channel(Protocol):
    """Carries whole frames, both ways. A call raises ``UnreachableError`` where the other end is gone, and
    ``DeadlineError`` where it does nothing for ``seconds``; None: there is no limit."""

    def send(self, body: bytes, *, seconds: float | None) -> None: ...

    def receive(self, *, max_bytes: int, seconds: float | None) -> bytes:
        """Returns the body of the next frame. Raises ``OversizedError`` before it reads one over ``max_bytes``."""

    def close(self) -> None: ...

    @property
    def carried_by(self) -> int | None:
        """The other process of this machine through which it goes, if that is known."""


class SocketChannel:
    """``Channel`` on a connected stream socket. One thread may send while another one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setblocking(False)

    def send(self, body: bytes, *, seconds: float | None) -> None:
        left = memoryview(framed(body))
        try:
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, seconds)
        except TimeoutError as error:
            raise DeadlineError(f"the other end took nothing for {seconds} s") from error
        except OSError as error:
            raise UnreachableError(f"the connection is closed ({error})") from error

    def receive(self, *, max_bytes: int, seconds: float | None) -> bytes:
        until = None if seconds is None else time.monotonic() + seconds
        try:
            prefix = self._exactly(LENGTH_BYTES, until)
            return self._exactly(checked_body_length(prefix, max_bytes=max_bytes, what=ENGINE_PROTOCOL), until)
        except TimeoutError as error:
            raise DeadlineError(f"the other end said nothing for {seconds} s") from error
        except OSError as error:
            raise UnreachableError(f"the connection is closed ({error})") from error

    def close(self) -> None:
        """Closes it; a call that waits in another thread ends with ``UnreachableError``."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @property
    def carried_by(self) -> int | None:
        """As of ``Channel``: on Linux, unless it is this process itself."""
        if sys.platform != "linux" or self._socket.family != socket.AF_UNIX:
            return None
        try:
            found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:  # it is closed
            return None
        process: int = _CREDENTIALS.unpack(found)[0]
        return process if process not in (0, os.getpid()) else None

    def detached(self) -> socket.socket:
        """Returns the socket itself, which is the caller's from now on."""
        return self._socket

    def _exactly(self, size: int, until: float | None) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                part = self._socket.recv(min(size - len(received), _READ_BYTES))
            except BlockingIOError:
                self._wait(select.POLLIN, None if until is None else until - time.monotonic())
                continue
            if not part:
                raise UnreachableError("the connection was closed")
            received += part
        return bytes(received)

    def _wait(self, event: int, seconds: float | None) -> None:
        """Returns once the socket may be read or written. Raises ``TimeoutError`` after ``seconds``, ``OSError`` where
        it was closed."""
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise OSError("closed here")
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(None if seconds is None else max(0, round(1000 * seconds))):
            raise TimeoutError
