"""Reads exact amounts, and whole frames, from a stream whose peer may be slow, silent or hostile; and sends to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from protocol.errors import UnreachableError
from protocol.limits import CHUNK_BYTES
from protocol.streams.framing import LENGTH_BYTES, checked_body_length
from swarm.deadlines import deadline
from swarm.host import Host, PeerId, Stream

SLOWEST_BYTES_PER_SECOND = 4096.0  # a peer below it is taken for a stalled one
MIN_RECEIVE_BYTES = 4096
STREAM_END_SECONDS = 1.0  # for a peer to end a stream on which nothing is left to send

ReadExactly = Callable[[int], Awaitable[bytes | bytearray]]  # exactly that many bytes, or it raises


async def read_frame(exactly: ReadExactly, *, max_bytes: int, what: str) -> bytes:
    """The body of the next frame. Raises ``OversizedError`` before it reads a body of more than ``max_bytes``, and
    what ``exactly`` raises; ``what`` names the protocol in the message."""
    length = checked_body_length(await exactly(LENGTH_BYTES), max_bytes=max_bytes, what=what)
    return bytes(await exactly(length))


async def send_within(stream: Stream, payload: bytes, seconds: float) -> None:
    """Raises ``DeadlineError`` for a peer that does not take all of it in time, ``UnreachableError``."""
    with deadline(seconds, f"sending to {stream.peer}"):
        await stream.send(payload)


async def drop(stream: Stream) -> None:
    """Resets the stream, also where the task is being cancelled."""
    with anyio.CancelScope(shield=True):
        await stream.reset()


@asynccontextmanager
async def asking(host: Host, peer: PeerId, protocol: str, *, seconds: float) -> AsyncIterator[Stream]:
    """Opens a stream to a connected peer, and finishes it after the block, or resets it where the block raises.

    Raises what ``Host.open_stream`` raises, within ``seconds``.
    """
    stream = await host.open_stream(peer, protocol, deadline_seconds=seconds)
    try:
        yield stream
        await stream.finish(linger_seconds=STREAM_END_SECONDS)
    except BaseException:
        await drop(stream)
        raise


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
        with deadline(limit_seconds, f"reading {len(into)} bytes of {self._stream.peer}"):
            at = 0
            while at < len(into):
                if not self._left and not await self._more(len(into) - at):
                    raise UnreachableError(f"the stream of {self._stream.peer} ended {len(into) - at} bytes too early")
                part = self._left[: len(into) - at]
                into[at : at + len(part)] = part
                self._left = self._left[len(part) :]
                at += len(part)

    async def _more(self, wanted: int) -> bool:
        with deadline(self._stall_seconds, f"waiting for {self._stream.peer}"):
            self._left = memoryview(await self._stream.receive(max(wanted, MIN_RECEIVE_BYTES)))
        self.heard_at_seconds = anyio.current_time()
        self.answered_bytes += len(self._left)
        self.received_bytes += len(self._left)
        return bool(self._left)
