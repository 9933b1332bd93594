"""``swarm.host.Stream`` over the Unix socket through which the daemon passes one stream of a peer.

What the daemon does at a stream's end, which no client of it can change:

- Once the peer ends its direction, or resets the stream, the daemon closes this socket, both ways. So the end of the
  stream and a reset look the same here, ``b""``, and nothing can be sent to a peer that has ended its direction.
- Once we end our direction, the daemon ends both. So what the peer sends after ``close`` is lost.

Every frame of our protocols has a length, requests are answered before either side ends the stream, and whoever opened
a stream ends it first: no protocol of ours needs half a stream, and a frame cut short is an error whatever cut it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketStream

from protocol.errors import UnreachableError
from swarm.host import PeerId
from swarm.hosts.bandwidth import Bandwidth
from swarm.hosts.go.control import close

PIECE_BYTES = 1 << 18  # sent, or received, at a time
DISCARDED_BYTES = 1 << 16  # at a time
ANSWER_READ_SECONDS = 1.0  # for the peer that opened a stream to end it, before we do


@dataclass(slots=True)
class StreamTraffic:
    """The streams of a host that are not closed yet, and what all of them sent and received together."""

    bandwidth: Bandwidth
    open: set[GoStream] = field(default_factory=set)
    sent_bytes: int = 0
    received_bytes: int = 0


class GoStream:
    """One stream to one peer. Made by ``GoHost``. ``left`` is what arrived of it together with its announcement."""

    def __init__(
        self,
        connection: SocketStream,
        peer: PeerId,
        network: str,
        traffic: StreamTraffic,
        *,
        left: bytes,
        is_ours: bool,
    ) -> None:
        self.peer = peer
        self.network = network
        self._connection = connection
        self._traffic = traffic
        traffic.open.add(self)
        self._left = left
        self._is_ours = is_ours
        self._sent_all = False
        self._received_all = False

    async def send(self, payload: bytes) -> None:
        if self._sent_all:
            raise RuntimeError("send after close: this end of the stream is closed")
        for start in range(0, len(payload), PIECE_BYTES):
            piece = payload[start : start + PIECE_BYTES] if len(payload) > PIECE_BYTES else payload
            await self._traffic.bandwidth.before_sending(len(piece))
            try:
                await self._connection.send(piece)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise UnreachableError(f"{self.peer} is gone: the stream ended") from error
            self._traffic.sent_bytes += len(piece)

    async def receive(self, max_bytes: int) -> bytes:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; at least 1 is needed to tell data from the end of the stream")
        if self._left:
            piece, self._left = self._left[:max_bytes], self._left[max_bytes:]
        elif self._received_all:
            return b""
        else:
            try:
                piece = await self._connection.receive(min(max_bytes, PIECE_BYTES))
            except anyio.EndOfStream:
                self._received_all = True
                return b""
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise UnreachableError(f"{self.peer} is gone: the stream was reset") from error
        self._traffic.received_bytes += len(piece)
        await self._traffic.bandwidth.after_receiving(len(piece))
        return piece

    async def close(self) -> None:
        """Ends both directions: the peer reads what was sent, then ``b""``, and nothing more is received."""
        if not self._sent_all:
            self._sent_all = True
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._connection.send_eof()

    async def reset(self) -> None:
        """The peer reads the end of the stream, or an error where it was still sending."""
        self._sent_all = self._received_all = True
        self._left = b""
        self._traffic.open.discard(self)
        await close(self._connection)

    async def finish(self, *, linger_seconds: float) -> None:
        """Ends a stream of ours at once. One of the peer's ends once the peer ended it, which shows that our answer was
        read, or after ``ANSWER_READ_SECONDS``."""
        try:
            if self._is_ours:
                await self.close()
            with anyio.move_on_after(linger_seconds if self._is_ours else min(linger_seconds, ANSWER_READ_SECONDS)):
                with suppress(UnreachableError):
                    while await self.receive(DISCARDED_BYTES):
                        pass
        finally:
            await self.reset()
