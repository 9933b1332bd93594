"""py-libp2p's Yamux, made safe to cancel and to load from both sides.

- Frames without payload (window updates, acknowledgements, pings) are queued, and a task of the connection writes them,
  many at a time. In the library the task that reads the connection also writes them, so that two sides that both have
  much to send wait for each other for ever: neither reads, since both wait to write.
- A frame with payload is written whole, or the connection is dropped. A cancelled write (at a deadline) would otherwise
  leave half an encrypted frame and break the connection for every other stream.
- Bytes of a peer that are not read here are bounded. The library logs that a peer exceeded its window, and keeps the
  bytes; and its windows grow to 16 MiB per stream, which is more than a small node has for a slow reader.
"""

from __future__ import annotations

from collections import deque

import anyio
import libp2p.stream_muxer.yamux.yamux as library
import trio
from libp2p.abc import ISecureConn
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, Yamux

from swarm.hosts.libp2p.containment import PEER_FAILURES

WRITE_SECONDS = 30.0  # a frame of at most 64 KiB that takes longer means that the peer no longer reads
QUEUED_FRAMES = 16_384  # without payload; a peer that causes so many and reads none is dropped
NOISE_PLAINTEXT_BYTES = 65_519
WINDOW_BYTES = 1024 * 1024  # of one stream at most: 10 MB/s at a round trip of 100 ms
UNREAD_BYTES = 32 * 1024 * 1024  # of one connection, over all its streams
CHECKED_EVERY_BYTES = 1024 * 1024
PAYLOAD_BYTES = NOISE_PLAINTEXT_BYTES - HEADER_SIZE  # in one frame: one Noise message; more would make two

library.MAX_WINDOW_SIZE = WINDOW_BYTES  # the library reads it when a window grows and when a frame claims its size


class SteadyYamux(Yamux):
    """One connection's streams."""

    def __init__(self, secured_conn: ISecureConn, peer_id: ID, is_initiator: bool | None = None) -> None:
        super().__init__(secured_conn, peer_id, is_initiator)
        self._queued: deque[bytes] = deque()
        self._is_queued = trio.Event()
        self._unchecked_bytes = 0

    async def _read_data_body(self, length: int) -> bytes:
        self._unchecked_bytes += length
        if self._unchecked_bytes >= CHECKED_EVERY_BYTES:
            self._unchecked_bytes = 0
            if sum(map(len, self.stream_buffers.values())) > UNREAD_BYTES:
                await self._drop()
                raise ConnectionClosedError(f"{self.peer_id} sends beyond its windows", transport="tcp")
        return await super()._read_data_body(length)

    async def handle_incoming(self) -> None:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._write_queued)
            await super().handle_incoming()
            tasks.cancel_scope.cancel()

    async def _write_frame(self, data: bytes) -> None:
        """Queues a frame without payload, with no checkpoint; writes any other before it returns."""
        if len(data) == HEADER_SIZE and len(self._queued) < QUEUED_FRAMES:
            self._queued.append(data)
            self._is_queued.set()
            return
        if len(data) == HEADER_SIZE:
            await self._drop()
            raise ConnectionClosedError(f"{self.peer_id} reads none of {QUEUED_FRAMES} frames", transport="tcp")
        async with self._write_lock:
            await self._write(self._take_queued() + data)
        await trio.lowlevel.checkpoint()

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
