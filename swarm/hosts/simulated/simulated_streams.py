"""Links and streams of the simulated network.

Bytes arrive in order, after ``transmission + delay`` of virtual time. Transmission is the size over the bandwidth of
the link, which all streams of one direction share. The delay is drawn per message from the link's own generator, so
that traffic elsewhere does not change it. A link that is *cut* holds bytes back and delivers them once it is whole
again, as TCP's retransmission does. A link that is *broken* fails both ends at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from weakref import WeakSet

import anyio

from protocol.errors import UnreachableError
from swarm.host import PeerId

WINDOW_BYTES = 256 * 1024  # sent and not yet read by the peer, per stream and direction: Yamux's initial window
PIECE_BYTES = 64 * 1024
DISCARDED_BYTES = 1 << 16  # at a time


@dataclass(slots=True)
class LinkDirection:
    """One direction of a link: decides when bytes arrive."""

    random: Random
    delay_seconds: tuple[float, float]
    bytes_per_second: Callable[[], float | None]
    is_cut: Callable[[], bool]
    count_sent: Callable[[int], None]
    count_received: Callable[[int], None]
    busy_until_seconds: float = 0.0

    def delay(self) -> float:
        return self.random.uniform(*self.delay_seconds)

    def arrival_seconds(self, size_bytes: int) -> float:
        """When a message handed over now arrives. Occupies the direction for its transmission."""
        rate = self.bytes_per_second()
        start = max(anyio.current_time(), self.busy_until_seconds)
        self.busy_until_seconds = start + (size_bytes / rate if rate else 0.0)
        self.count_sent(size_bytes)
        return self.busy_until_seconds + self.delay()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Pipe:
    """One direction of one stream. ``None`` in the queue is the end of the stream."""

    direction: LinkDirection
    arrived_last_seconds: float = 0.0
    unread_bytes: int = 0
    finished: bool = False
    broken_because: str | None = None
    queue: deque[tuple[float, bytes | None]] = field(default_factory=deque)
    changed: anyio.Event = field(default_factory=anyio.Event)

    def wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def fail(self, because: str) -> None:
        if self.broken_because is None:
            self.broken_because = because
            self.queue.clear()
            self.wake()

    def _put(self, piece: bytes | None) -> None:
        self.arrived_last_seconds = max(self.arrived_last_seconds, self.direction.arrival_seconds(len(piece or b"")))
        self.queue.append((self.arrived_last_seconds, piece))
        self.wake()

    async def send(self, payload: bytes) -> None:
        if self.finished:
            raise RuntimeError("send after close: this end of the stream is closed")
        await anyio.lowlevel.checkpoint()
        for start in range(0, len(payload), PIECE_BYTES):
            piece = payload[start : start + PIECE_BYTES]
            while self.broken_because is None and self.unread_bytes >= WINDOW_BYTES:
                await self.changed.wait()
            if self.broken_because is not None:
                raise UnreachableError(self.broken_because)
            self.unread_bytes += len(piece)
            self._put(piece)
        if self.broken_because is not None:
            raise UnreachableError(self.broken_because)

    def finish(self) -> None:
        if not self.finished and self.broken_because is None:
            self.finished = True
            self._put(None)

    async def receive(self, max_bytes: int) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            if self.broken_because is not None:
                raise UnreachableError(self.broken_because)
            wait_seconds = self.queue[0][0] - anyio.current_time() if self.queue else float("inf")
            if wait_seconds <= 0 and not self.direction.is_cut():
                return self._take(max_bytes)
            with anyio.move_on_after(wait_seconds if wait_seconds > 0 else float("inf")):
                await self.changed.wait()

    def _take(self, max_bytes: int) -> bytes:
        arrival_seconds, piece = self.queue[0]
        if piece is None:
            return b""
        self.queue.popleft()
        if len(piece) > max_bytes:
            self.queue.appendleft((arrival_seconds, piece[max_bytes:]))
            piece = piece[:max_bytes]
        self.unread_bytes -= len(piece)
        self.direction.count_received(len(piece))
        self.wake()
        return piece


class SimulatedStream:
    """A ``swarm.host.Stream`` over two pipes."""

    def __init__(self, peer: PeerId, outgoing: Pipe, incoming: Pipe) -> None:
        self.peer = peer
        self.network = ""
        self._outgoing = outgoing
        self._incoming = incoming

    async def send(self, payload: bytes) -> None:
        await self._outgoing.send(payload)

    async def receive(self, max_bytes: int) -> bytes:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; at least 1 is needed to tell data from the end of the stream")
        return await self._incoming.receive(max_bytes)

    async def close(self) -> None:
        self._outgoing.finish()
        await anyio.lowlevel.checkpoint()

    async def reset(self) -> None:
        self.fail(f"the stream with {self.peer} was reset")

    async def finish(self, *, linger_seconds: float) -> None:
        await self.close()
        with anyio.move_on_after(linger_seconds), suppress(UnreachableError):
            while await self.receive(DISCARDED_BYTES):
                pass
            return
        await self.reset()

    def fail(self, because: str) -> None:
        self._outgoing.fail(because)
        self._incoming.fail(because)


@dataclass(slots=True)
class SimulatedLink:
    """A connection of two hosts: two directions, and the pipes that run over them."""

    directions: dict[PeerId, LinkDirection]  # by the peer that sends
    round_trip_seconds: float
    pipes: WeakSet[Pipe] = field(default_factory=WeakSet)

    def other(self, peer: PeerId) -> PeerId:
        (other,) = (end for end in self.directions if end != peer)
        return other

    def open_stream(self, opener: PeerId) -> tuple[SimulatedStream, SimulatedStream]:
        """The opener's end and the other's end."""
        other = self.other(opener)
        there, back = Pipe(self.directions[opener]), Pipe(self.directions[other])
        self.pipes.update((there, back))
        return SimulatedStream(other, there, back), SimulatedStream(opener, back, there)

    def wake(self) -> None:
        for pipe in list(self.pipes):
            pipe.wake()

    def fail(self, because: str) -> None:
        for pipe in list(self.pipes):
            pipe.fail(because)
