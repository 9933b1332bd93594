"""Reads exact amounts, and whole frames, from a stream whose peer may be slow, silent or hostile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from protocol.errors import DeadlineError, UnreachableError
from protocol.limits import CHUNK_BYTES
from protocol.streams.framing import LENGTH_BYTES, checked_body_length
from swarm.host import Stream

SLOWEST_BYTES_PER_SECOND = 4096.0  # a peer below it is taken for a stalled one
MIN_RECEIVE_BYTES = 4096

ReadExactly = Callable[[int], Awaitable[bytes | bytearray]]  # exactly that many bytes, or it raises


async def read_frame(exactly: ReadExactly, *, max_bytes: int, what: str) -> bytes:
    """The body of the next frame. Raises ``OversizedError`` before it reads a body of more than ``max_bytes``, and
    what ``exactly`` raises; ``what`` names the protocol in the message."""
    length = checked_body_length(await exactly(LENGTH_BYTES), max_bytes=max_bytes, what=what)
    return bytes(await exactly(length))


class StreamReader:
    """Reads exact amounts from a peer, each within ``stall_seconds`` and the time that the slowest rate allows."""

    def __init__(self, stream: Stream, *, stall_seconds: float) -> None:
        self._stream = stream
        self._stall_seconds = stall_seconds
        self._left = memoryview(b"")
        self.received_bytes = 0
        self.asked_now()

    def asked_now(self) -> None:
        """Counts the peer's silence, and the bytes of its answer, from now on."""
        self.asked_at_seconds = self.heard_at_seconds = anyio.current_time()
        self.answered_bytes = len(self._left)

    @property
    def unread(self) -> bytes:
        """What has arrived and was not asked for yet."""
        return bytes(self._left)

    async def at_end(self) -> bool:
        """Whether the peer ended its direction and everything was read."""
        return not self._left and not await self._more(CHUNK_BYTES)

    async def exactly(self, size: int) -> bytearray:
        """``size`` bytes. Raises as ``fill`` does."""
        into = bytearray(size)
        await self.fill(memoryview(into))
        return into

    async def fill(self, into: memoryview) -> None:
        """Fills ``into``. Raises ``DeadlineError`` for a peer that is silent or too slow, ``UnreachableError`` for an
        early end of stream."""
        limit_seconds = self._stall_seconds + len(into) / SLOWEST_BYTES_PER_SECOND
        with anyio.move_on_after(limit_seconds) as scope:
            at = 0
            while at < len(into):
                if not self._left and not await self._more(len(into) - at):
                    raise UnreachableError(f"the stream of {self._stream.peer} ended {len(into) - at} bytes too early")
                part = self._left[: len(into) - at]
                into[at : at + len(part)] = part
                self._left = self._left[len(part) :]
                at += len(part)
        if scope.cancelled_caught:
            raise DeadlineError(f"{self._stream.peer} took over {limit_seconds:.0f} s for {len(into)} bytes")

    async def _more(self, wanted: int) -> bool:
        with anyio.move_on_after(self._stall_seconds) as scope:
            self._left = memoryview(await self._stream.receive(max(wanted, MIN_RECEIVE_BYTES)))
        if scope.cancelled_caught:
            raise DeadlineError(f"{self._stream.peer} sent nothing for {self._stall_seconds:g} s")
        self.heard_at_seconds = anyio.current_time()
        self.answered_bytes += len(self._left)
        self.received_bytes += len(self._left)
        return bool(self._left)
