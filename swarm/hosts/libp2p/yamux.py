"""py-libp2p's Yamux, made safe to cancel and to load from both sides.

- Frames without payload (window updates, acknowledgements, pings) are queued, and a task of the connection writes them,
  many at a time. In the library the task that reads the connection also writes them, so that two sides that both have
  much to send wait for each other for ever: neither reads, since both wait to write.
- A frame with payload is written whole, or the connection is dropped. A cancelled write (at a deadline) would otherwise
  leave half an encrypted frame and break the connection for every other stream.
- A peer is granted what its window has room for, and no more (``SteadyStream``). The library credits bytes twice,
  so that a window grows beyond the longest frame that it accepts, and a peer that fills it with one is dropped.
- A stream that has ended leaves nothing behind. The library makes an event for a reader that the end has woken, and
  keeps it for as long as the connection stands: 0.4 kB, of a few streams for each circuit of a relay. And a reader of
  ours is not woken when we reset the stream: that of a connection through a relay, which we closed, waited for as long
  as the relay was connected, with three tasks and all of the connection.
- Bytes of a peer that are not read here are bounded. The library logs that a peer exceeded its window, and keeps the
  bytes; and its windows grow to 16 MiB per stream, which is more than a small node has for a slow reader.
- So are those of all connections together: windows that are kept to add up, over many streams of many peers. Beyond the
  bound, the connection is dropped that has the most on streams from which nothing was read for ``STALE_SECONDS``.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import ClassVar, cast
from weakref import WeakSet

import anyio
import libp2p.stream_muxer.yamux.yamux as library
import trio
from libp2p.abc import ISecureConn
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, Yamux, YamuxStream

from swarm.hosts.libp2p.containment import PEER_FAILURES
from swarm.hosts.libp2p.transport import acquire_at_once
from swarm.hosts.libp2p.yamux_frames import ArrivingFrames

WRITE_SECONDS = 30.0  # a frame of at most 64 KiB that takes longer means that the peer no longer reads
BODY_SECONDS = 60.0  # for the payload of a frame that was begun, as in the library
QUEUED_FRAMES = 16_384  # without payload; a peer that causes so many and reads none is dropped
NOISE_PLAINTEXT_BYTES = 65_519
WINDOW_BYTES = 1024 * 1024  # of one stream at most: 10 MB/s at a round trip of 100 ms
UNREAD_BYTES = 32 * 1024 * 1024  # of one connection, over all its streams
CHECKED_EVERY_BYTES = 1024 * 1024
ALL_UNREAD_BYTES = 64 * 1024 * 1024  # of all connections of this process, by at most ``ALL_CHECKED_EVERY_BYTES`` more
ALL_CHECKED_EVERY_BYTES = 8 * 1024 * 1024
STALE_SECONDS = 1.0
PAYLOAD_BYTES = NOISE_PLAINTEXT_BYTES - HEADER_SIZE  # in one frame: one Noise message; more would make two
REST_BYTES = 4096  # a shorter rest goes with the frame before it: a second message costs less than a second write

library.MAX_WINDOW_SIZE = WINDOW_BYTES  # the library reads it when a window grows and when a frame claims its size


class SteadyStream(YamuxStream):
    """One stream. What its peer may still send and what is unread here are never more than the window together.

    The window is ``target_recv_window``: 256 KiB at first, doubled while half of it takes less than four round trips,
    ``WINDOW_BYTES`` at most.
    """

    read_at_seconds = -math.inf
    _has_window: trio.Event | None = None  # of the sender that waits for it
    _send_window_bytes: int

    @property
    def send_window(self) -> int:
        """How many bytes the peer accepts now."""
        return self._send_window_bytes

    @send_window.setter
    def send_window(self, size_bytes: int) -> None:  # the library assigns it as an attribute
        self._send_window_bytes = size_bytes
        if size_bytes > 0 and self._has_window is not None:
            self._has_window.set()

    async def wait_for_window(self) -> None:
        """Returns once the peer accepts at least a byte. The end of the stream does not end it."""
        while self._send_window_bytes <= 0:
            self._has_window = trio.Event()
            await self._has_window.wait()

    async def reset(self) -> None:
        """Drops both directions, and ends a read of this end that waits."""
        awaited = self.conn.stream_events.get(self.stream_id)
        try:
            await super().reset()
        finally:
            if awaited is not None:
                awaited.set()

    async def send_frame(self, payload: memoryview) -> None:
        """Writes one frame, for which the peer's window must have room, as long as ``frame_bytes`` says at most.

        ``write`` of the library looks at the window under three locks, each of which is a turn of the loop. Nothing
        comes between looking and taking here, so that none is needed. More than a frame is not written at once: what
        the peer is granted waits behind it, on a link that both directions fill. Raises ``MuxedStreamError`` where
        this end is closed.
        """
        if self.send_closed or self.closed:
            raise MuxedStreamError("the stream is closed for sending")
        self.send_window -= len(payload)
        header = struct.pack(library.YAMUX_HEADER_FORMAT, 0, library.TYPE_DATA, 0, self.stream_id, len(payload))
        await self.conn._write_frame(b"".join((header, payload)))

    async def receive(self, max_bytes: int) -> bytes:
        """Waits for payload, and returns at most so much; nothing where the stream does not stand open any more, of
        which ``read`` of the library says more.

        ``read`` takes four turns of the loop for locks. What is done here needs none: nothing comes between looking
        and taking. Cancelled, it has taken nothing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not (self.recv_closed or self.closed or self.conn.event_shutting_down.is_set()):
            buffer = self.conn.stream_buffers.get(self.stream_id)
            arrived = self.conn.stream_events.get(self.stream_id)
            if buffer is None or arrived is None:
                break
            if buffer:
                data = bytes(memoryview(buffer)[:max_bytes])
                del buffer[:max_bytes]
                self.read_at_seconds = trio.current_time()
                await self._auto_tune_and_send_window_update(bytes_read=len(data))
                return data
            if arrived.is_set():  # for what was taken already
                arrived = self.conn.stream_events[self.stream_id] = trio.Event()
            await arrived.wait()
        return b""

    async def _auto_tune_and_send_window_update(self, *, bytes_read: int = 0) -> None:
        """Called after every read. Grants the peer the whole window again once half of it is free, as go-yamux does."""
        unread_bytes = len(self.conn.stream_buffers.get(self.stream_id, b""))
        free_bytes = self.target_recv_window - self.recv_window - unread_bytes
        if free_bytes >= self.target_recv_window // 2:
            granted_bytes = self._grow_to_delta(unread_bytes) + self._apply_autotune_epoch(unread_bytes)
            await self.send_window_update(granted_bytes)


def frame_bytes(left_bytes: int, window_bytes: int) -> int:
    """Returns how many of the bytes left to send go into the next frame."""
    longest = PAYLOAD_BYTES if left_bytes > PAYLOAD_BYTES + REST_BYTES else left_bytes
    return min(longest, window_bytes)


library.YamuxStream = SteadyStream  # type: ignore[misc]  # the library makes one for each stream, whoever opened it


class _Unread:
    """The connections of this process, and the bytes that came over all of them since they were last added up."""

    connections: ClassVar[WeakSet[SteadyYamux]] = WeakSet()
    unchecked_bytes: ClassVar[int] = 0


class SteadyYamux(Yamux):
    """One connection's streams."""

    def __init__(self, secured_conn: ISecureConn, peer_id: ID, is_initiator: bool | None = None) -> None:
        self._arriving = ArrivingFrames(secured_conn, self._take_payload, self._take_grant)
        super().__init__(cast(ISecureConn, self._arriving), peer_id, is_initiator)
        self._queued: deque[bytes] = deque()
        self._is_queued = trio.Event()
        self._unchecked_bytes = 0

    async def read_stream(self, stream_id: int, n: int = -1) -> bytes:
        try:
            data = await super().read_stream(stream_id, n)
        finally:
            if stream_id not in self.streams:
                self.stream_events.pop(stream_id, None)
        if stream_id in self.streams:
            cast(SteadyStream, self.streams[stream_id]).read_at_seconds = trio.current_time()
        return data

    def unread_bytes(self) -> int:
        return sum(map(len, self.stream_buffers.values()))

    def stale_bytes(self, now_seconds: float) -> int:
        """Unread bytes of streams from which nothing was read for ``STALE_SECONDS``."""
        streams = cast(dict[int, SteadyStream], self.streams)
        return sum(
            len(buffer)
            for stream_id, buffer in self.stream_buffers.items()
            if stream_id not in streams or now_seconds - streams[stream_id].read_at_seconds >= STALE_SECONDS
        )

    def _take_grant(self, stream_id: int, granted_bytes: int) -> bool:
        """Acts on a frame that lets a stream send more, if it is open here."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.send_window += granted_bytes
        return stream is not None

    async def _take_payload(self, stream_id: int, length: int) -> bool:
        """Reads payload of a stream that is open here, and wakes its reader; leaves that of any other."""
        if length > WINDOW_BYTES or stream_id not in self.streams:
            return False
        await self._check_unread(length)
        payload = self._arriving.take(length) or await self._read_within(length)
        stream, buffer = self.streams.get(stream_id), self.stream_buffers.get(stream_id)
        if stream is not None and buffer is not None:  # it was not reset here meanwhile
            buffer += payload
            stream.recv_window = max(0, stream.recv_window - length)
            self.stream_events[stream_id].set()
        return True

    async def _read_data_body(self, length: int) -> bytes:
        await self._check_unread(length)
        return await self._read_within(length)

    async def _read_within(self, length: int) -> bytes:
        with trio.fail_after(BODY_SECONDS):
            return await self._arriving.exactly(length)

    async def _check_unread(self, length: int) -> None:
        """Counts payload that arrives, and raises ``ConnectionClosedError`` if too much of this peer's is unread."""
        _Unread.unchecked_bytes += length
        if _Unread.unchecked_bytes >= ALL_CHECKED_EVERY_BYTES:
            _Unread.unchecked_bytes = 0
            await _drop_beyond_bound()
        self._unchecked_bytes += length
        if self._unchecked_bytes >= CHECKED_EVERY_BYTES:
            self._unchecked_bytes = 0
            if self.unread_bytes() > UNREAD_BYTES:
                await self._drop()
                raise ConnectionClosedError(f"{self.peer_id} sends beyond its windows", transport="tcp")

    async def handle_incoming(self) -> None:
        _Unread.connections.add(self)
        try:
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self._write_queued)
                await super().handle_incoming()
                tasks.cancel_scope.cancel()
        finally:
            _Unread.connections.discard(self)

    async def _write_frame(self, data: bytes) -> None:
        """Queues a frame without payload, with no checkpoint; writes any other before it returns."""
        if len(data) == HEADER_SIZE and len(self._queued) < QUEUED_FRAMES:
            self._queued.append(data)
            self._is_queued.set()
            return
        if len(data) == HEADER_SIZE:
            await self._drop()
            raise ConnectionClosedError(f"{self.peer_id} reads none of {QUEUED_FRAMES} frames", transport="tcp")
        await acquire_at_once(self._write_lock)
        try:
            await self._write(self._take_queued() + data)
        finally:
            self._write_lock.release()
        await trio.lowlevel.checkpoint_if_cancelled()  # writing was a turn of the loop

    async def _write_queued(self) -> None:
        try:
            while True:
                await self._is_queued.wait()
                async with self._write_lock:
                    while frames := self._take_queued():
                        await self._write(frames)
        except PEER_FAILURES:
            await self._drop()

    def _take_queued(self) -> bytes:
        """Returns all queued frames, in order: those of a stream must precede its payload."""
        frames = b"".join(self._queued)
        self._queued.clear()
        if self._is_queued.is_set():
            self._is_queued = trio.Event()
        return frames

    async def _write(self, frames: bytes) -> None:
        with anyio.move_on_after(WRITE_SECONDS, shield=True) as scope:
            await self.secured_conn.write(frames)
        if scope.cancelled_caught:
            await self._drop()
            raise ConnectionClosedError(f"{self.peer_id} read nothing for {WRITE_SECONDS:g} s", transport="tcp")

    async def _drop(self) -> None:
        """Closes the connection below; the task that reads it notices and cleans up."""
        with anyio.CancelScope(shield=True):
            await self.secured_conn.close()


async def _drop_beyond_bound() -> None:
    """Drops connections until what is unread of the others keeps the bound."""
    now_seconds = trio.current_time()
    unread = {connection: connection.unread_bytes() for connection in _Unread.connections}
    excess = sum(unread.values()) - ALL_UNREAD_BYTES
    stale = {connection: (connection.stale_bytes(now_seconds), unread[connection]) for connection in unread}
    for connection in sorted(stale, key=stale.__getitem__, reverse=True):
        if excess <= 0:
            return
        excess -= unread[connection]
        _Unread.connections.discard(connection)
        for buffer in connection.stream_buffers.values():
            buffer.clear()
        await connection._drop()
