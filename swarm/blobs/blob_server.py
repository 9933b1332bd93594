"""Blob exchange ``/starling/blobs/1``: many blobs in one stream, each chunk verifiable by itself. This is the server.

    request  = u32 length ‖ MessagePack [[id, first chunk, chunk count, hashes wanted], …]
    answer   = for each range in order: u8 status ‖ u64 size ‖ [32 bytes a chunk of the whole blob] ‖ [the chunks]

Numbers are big-endian. A status other than HERE ends that range's answer after the size, which is 0. Hashes come when
asked for; chunks are ``limits.CHUNK_BYTES`` long, the last one shorter, so that neither side sends a length that the
other must believe. A range that reaches beyond the blob is cut to what there is. Requests may follow each other on one
stream without waiting: a hundred small blobs cost one round trip.

What an honest peer never sends (an undecodable request, more than the limits) resets the stream and is reported.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from enum import IntEnum
from typing import Annotated

import anyio
import anyio.lowlevel
import msgspec
from msgspec import Meta, Struct

from protocol import wire
from protocol.blob_id import chunk_count
from protocol.errors import DeadlineError, OversizedError, ProtocolError, UnreachableError
from protocol.limits import CHUNK_BYTES
from protocol.messages import Hash32
from swarm.blobs.store import ContentStore, NotHereError
from swarm.host import Host, PeerId, Stream
from swarm.peers.reputation import Conduct
from swarm.token_bucket import TokenBucket

PROTOCOL = "/starling/blobs/1"
RANGES_PER_REQUEST = 1024
REQUEST_BYTES = 64 * 1024
STREAMS_PER_PEER = 4
STREAMS = 64
STALL_SECONDS = 10.0
SLOWEST_BYTES_PER_SECOND = 4096.0  # a peer below it is taken for a stalled one
IDLE_SECONDS = 60.0  # a stream on which nothing is asked for so long is closed
SEND_BYTES = CHUNK_BYTES  # small answers are gathered up to this
HASHES_REMEMBERED = 65_536  # of blobs served lately: 16 GiB of blobs in 6 MB of memory
_LENGTH = struct.Struct(">I")
HEADER = struct.Struct(">BQ")

Report = Callable[[PeerId, Conduct, str], None]  # (peer, what it did, in words)
Given = Callable[[PeerId, bytes], None]  # (peer, blob whose last chunk it was sent)


class Status(IntEnum):
    HERE = 0
    MISSING = 1
    BUSY = 2  # too many streams at once: ask again later, or somebody else


class Range(Struct, frozen=True, array_like=True):
    """Consecutive chunks of one blob; with ``hashes``, first the list of all chunk hashes."""

    blob: Hash32
    first: Annotated[int, Meta(ge=0, le=2**32)]
    count: Annotated[int, Meta(ge=0, le=2**32)]
    hashes: bool


def encode_request(ranges: Sequence[Range]) -> bytes:
    body = msgspec.msgpack.encode(ranges)
    return _LENGTH.pack(len(body)) + body


class StreamReader:
    """Reads exact amounts from a peer that may keep silent for ``stall_seconds`` and not drip either."""

    def __init__(self, stream: Stream, *, stall_seconds: float) -> None:
        self._stream = stream
        self._stall_seconds = stall_seconds
        self._left = memoryview(b"")
        self.heard_at_seconds = anyio.current_time()

    def asked_now(self) -> None:
        """Silence counts from here on."""
        self.heard_at_seconds = anyio.current_time()

    async def at_end(self) -> bool:
        """Whether the peer ended its direction and everything was read."""
        return not self._left and not await self._more(CHUNK_BYTES)

    async def exactly(self, size: int) -> bytearray:
        """``size`` bytes. Raises as ``fill`` does."""
        into = bytearray(size)
        await self.fill(memoryview(into))
        return into

    async def fill(self, into: memoryview) -> None:
        """Raises ``DeadlineError`` for a silent or dripping peer, ``UnreachableError`` for an early end of stream."""
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
            self._left = memoryview(await self._stream.receive(max(wanted, 4096)))
        if scope.cancelled_caught:
            raise DeadlineError(f"{self._stream.peer} sent nothing for {self._stall_seconds:g} s")
        self.heard_at_seconds = anyio.current_time()
        return bool(self._left)


class BlobServer:
    """Serves the store's blobs to peers, at most ``upload_bytes_per_second`` in all (0: no limit)."""

    def __init__(
        self,
        host: Host,
        store: ContentStore,
        *,
        upload_bytes_per_second: float = 0.0,
        stall_seconds: float = STALL_SECONDS,
        report: Report,
        given: Given = lambda peer, blob: None,
    ) -> None:
        self.refused: Counter[str] = Counter()  # requests, by reason
        self._store = store
        self._stall_seconds = stall_seconds
        self._report, self._given = report, given
        self._bucket: TokenBucket | None = None
        if upload_bytes_per_second:
            # Bursts of a quarter of a second, so that a slow upload never looks like a stalled one.
            burst_bytes = min(float(SEND_BYTES), max(1024.0, upload_bytes_per_second / 4))
            self._bucket = TokenBucket(upload_bytes_per_second, burst_bytes, now_seconds=anyio.current_time())
        self._streams: Counter[PeerId] = Counter()
        self._hashes: OrderedDict[bytes, list[bytes]] = OrderedDict()
        host.handle(PROTOCOL, self._serve)

    async def _serve(self, stream: Stream) -> None:
        busy = self._streams[stream.peer] >= STREAMS_PER_PEER or self._streams.total() >= STREAMS
        self._streams[stream.peer] += 1
        try:
            reader = StreamReader(stream, stall_seconds=IDLE_SECONDS)
            while not await reader.at_end():
                ranges = await self._next_request(reader)
                await self._answer(stream, ranges, busy=busy)
        except DeadlineError:
            await stream.reset()  # idle, or not reading: nobody's fault
        except ProtocolError as error:
            self.refused[error.reason] += 1
            self._report(stream.peer, Conduct.HOSTILE_REQUEST, str(error))
            raise
        finally:
            self._streams[stream.peer] -= 1
            if not self._streams[stream.peer]:
                del self._streams[stream.peer]

    async def _next_request(self, reader: StreamReader) -> Sequence[Range]:
        (length,) = _LENGTH.unpack(await reader.exactly(_LENGTH.size))
        if length > REQUEST_BYTES:
            raise OversizedError(f"a request of {length} bytes; at most {REQUEST_BYTES} are allowed")
        ranges = wire.decode(bytes(await reader.exactly(length)), tuple[Range, ...], max_bytes=REQUEST_BYTES)
        if len(ranges) > RANGES_PER_REQUEST:
            raise OversizedError(f"a request for {len(ranges)} ranges; at most {RANGES_PER_REQUEST} are allowed")
        return ranges

    async def _answer(self, stream: Stream, ranges: Sequence[Range], *, busy: bool) -> None:
        gathered: list[bytes] = []
        gathered_bytes = 0
        ended: list[bytes] = []  # blobs whose last chunk is among these answers
        for wanted in ranges:
            if wanted.hashes and not busy:
                await self._learn_hashes(wanted.blob)
            with closing(self._pieces(wanted, ended, busy=busy)) as pieces:
                for piece in pieces:
                    gathered.append(piece)
                    gathered_bytes += len(piece)
                    if gathered_bytes >= SEND_BYTES:
                        await self._send(stream, gathered)
                        gathered, gathered_bytes = [], 0
        await self._send(stream, gathered)
        for blob in ended:
            self._given(stream.peer, blob)

    def _pieces(self, wanted: Range, ended: list[bytes], *, busy: bool) -> Generator[bytes, None, None]:
        if busy:
            yield HEADER.pack(Status.BUSY, 0)
            return
        try:
            with self._store.reading(wanted.blob) as file:
                size = os.fstat(file).st_size
                yield HEADER.pack(Status.HERE, size)
                if wanted.hashes:
                    yield b"".join(self._hashes[wanted.blob])
                for index in range(wanted.first, min(wanted.first + wanted.count, chunk_count(size))):
                    yield os.pread(file, CHUNK_BYTES, index * CHUNK_BYTES)
                if wanted.first < chunk_count(size) <= wanted.first + wanted.count:
                    ended.append(wanted.blob)
        except NotHereError:
            yield HEADER.pack(Status.MISSING, 0)

    async def _learn_hashes(self, blob: bytes) -> None:
        """Sees to it that ``_hashes`` has the blob's, if the blob is here, a few chunks at a time."""
        if blob in self._hashes:
            self._hashes.move_to_end(blob)
            return
        hashes: list[bytes] = []
        try:
            with self._store.reading(blob) as file:
                while chunk := os.pread(file, CHUNK_BYTES, len(hashes) * CHUNK_BYTES):
                    hashes.append(hashlib.sha256(chunk).digest())
                    if len(hashes) % 16 == 0:
                        await anyio.lowlevel.checkpoint()
        except NotHereError:
            return
        self._hashes[blob] = hashes
        while len(self._hashes) > 1 and sum(map(len, self._hashes.values())) > HASHES_REMEMBERED:
            self._hashes.popitem(last=False)

    async def _send(self, stream: Stream, pieces: list[bytes]) -> None:
        payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if not payload:
            return
        if self._bucket is None:
            await self._send_part(stream, payload)
            return
        for start in range(0, len(payload), int(self._bucket.burst)):
            part = payload[start : start + int(self._bucket.burst)]
            await anyio.sleep(self._bucket.reserve(len(part), now_seconds=anyio.current_time()))
            await self._send_part(stream, part)

    async def _send_part(self, stream: Stream, part: bytes) -> None:
        with anyio.move_on_after(self._stall_seconds) as scope:
            await stream.send(part)
        if scope.cancelled_caught:
            raise DeadlineError(f"{stream.peer} read nothing for {self._stall_seconds:g} s")
