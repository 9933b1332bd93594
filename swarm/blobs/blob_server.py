"""Blob exchange ``/starling/blobs/1``: the server. ``protocol.streams.blob_messages`` has requests and answers.

A peer may send requests one after another without waiting: a hundred small blobs cost one round trip. What an honest
peer never sends (a request that does not decode, or more than the limits) resets the stream and is reported.
``upload_turns`` decides who is served when many want to be.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import anyio
import anyio.lowlevel

from protocol.blob_id import chunk_count, id_of_chunk_hashes
from protocol.errors import DeadlineError, ProtocolError
from protocol.limits import BLOB_REQUEST_BYTES, CHUNK_BYTES
from protocol.streams.blob_messages import (
    BLOB_PROTOCOL,
    BlobStatus,
    ChunkRange,
    decode_blob_request,
    encode_answer_header,
)
from swarm.blobs.store import ContentStore, NotHereError
from swarm.blobs.upload_turns import IDLE_SECONDS, TURNS, Upload, UploadTurns
from swarm.host import Host, PeerId, Stream
from swarm.peers.reputation import Conduct
from swarm.stream_reader import StreamReader, read_frame, send_within
from swarm.token_bucket import TokenBucket

log = logging.getLogger(__name__)

STALL_SECONDS = 10.0
SEND_BYTES = CHUNK_BYTES  # small answers are sent together, up to this size
MOVE_BYTES = 64 * 1024  # a peer has ``STALL_SECONDS`` to take so many, so that a slow link is none that stalls
QUICK_SECONDS = 0.1  # a peer that took a part within them gets up to ``SEND_BYTES`` with its next turn
BACKLOG_SECONDS = 0.25  # of upload that waits for its bandwidth; what comes later is still to be put in order
HASHES_REMEMBERED = 65_536  # of the larger blobs served last: for 16 GiB, in 6 MB of memory

ReportConduct = Callable[[PeerId, Conduct, str], None]  # (peer, what it did, details)
Standing = Callable[[PeerId], float]  # reputation: who is served first when not all can be
OnSent = Callable[[PeerId, bytes], None]  # (peer, blob whose last chunk was sent to it)


class BlobServer:
    """Serves the store's blobs to peers, at most ``upload_bytes_per_second`` in all (0: no limit)."""

    def __init__(
        self,
        host: Host,
        store: ContentStore,
        *,
        upload_bytes_per_second: float = 0.0,
        stall_seconds: float = STALL_SECONDS,
        report: ReportConduct,
        on_sent: OnSent = lambda peer, blob: None,
        standing: Standing = lambda peer: 0.5,
    ) -> None:
        self.refused: Counter[str] = Counter()  # requests, by reason
        self._store = store
        self._stall_seconds = stall_seconds
        self._report, self._on_sent, self._standing = report, on_sent, standing
        self._bucket: TokenBucket | None = None
        self._part_bytes, turns = MOVE_BYTES, TURNS
        if upload_bytes_per_second:
            # A burst takes a quarter of a second, so that a slow upload never looks like a stalled one.
            burst_bytes = min(float(SEND_BYTES), max(1024.0, upload_bytes_per_second / 4))
            self._bucket = TokenBucket(upload_bytes_per_second, burst_bytes, now_seconds=anyio.current_time())
            self._part_bytes = min(MOVE_BYTES, int(burst_bytes))
            turns = min(TURNS, max(2, int(BACKLOG_SECONDS * upload_bytes_per_second / self._part_bytes)))
        self.turns = UploadTurns(turns)
        self._hashes: OrderedDict[bytes, list[bytes]] = OrderedDict()
        host.handle(BLOB_PROTOCOL, self._on_stream)

    async def _on_stream(self, stream: Stream) -> None:
        scope = anyio.CancelScope()
        now_seconds = anyio.current_time()
        upload = Upload(stream.peer, stream.network, self._standing(stream.peer), scope, now_seconds)
        if not self.turns.open(upload, now_seconds):
            await stream.reset()
            return
        try:
            with scope:
                await self._serve(stream, upload)
        finally:
            self.turns.close(upload)
        if scope.cancelled_caught:
            await stream.reset()  # others needed the place: no misconduct

    async def _serve(self, stream: Stream, upload: Upload) -> None:
        try:
            reader = StreamReader(stream, stall_seconds=IDLE_SECONDS)
            while not await reader.at_end():
                raw = await read_frame(reader.exactly, max_bytes=BLOB_REQUEST_BYTES, what="blob exchange")
                ranges = decode_blob_request(raw)
                if not self.turns.begin(upload, anyio.current_time()):
                    busy = encode_answer_header(BlobStatus.BUSY, 0) * len(ranges)
                    await send_within(stream, busy, self._stall_seconds)
                    continue
                try:
                    await self._answer(stream, upload, ranges)
                finally:
                    self.turns.end(upload, anyio.current_time())
        except DeadlineError:
            await stream.reset()  # idle, or not reading: no misconduct
        except ProtocolError as error:
            self.refused[error.reason] += 1
            self._report(stream.peer, Conduct.HOSTILE_REQUEST, str(error))
            raise

    async def _answer(self, stream: Stream, upload: Upload, ranges: Sequence[ChunkRange]) -> None:
        gathered: list[bytes] = []
        gathered_bytes = 0
        ended: list[bytes] = []  # blobs whose last chunk is among these answers
        for wanted in ranges:
            hashes = await self._hashes_of(wanted.blob) if wanted.hashes or wanted.first == 0 else []
            with closing(self._pieces(wanted, hashes, ended)) as pieces:
                for piece in pieces:
                    gathered.append(piece)
                    gathered_bytes += len(piece)
                    if gathered_bytes >= SEND_BYTES:
                        await self._send(stream, upload, gathered)
                        gathered, gathered_bytes = [], 0
        await self._send(stream, upload, gathered)
        for blob in ended:
            self._on_sent(stream.peer, blob)

    def _pieces(self, wanted: ChunkRange, hashes: Sequence[bytes], ended: list[bytes]) -> Generator[bytes, None, None]:
        try:
            with self._store.reading(wanted.blob) as reader:
                size = reader.size
                yield encode_answer_header(BlobStatus.HERE, size)
                if wanted.hashes:
                    yield b"".join(hashes)
                for index in range(wanted.first, min(wanted.first + wanted.count, chunk_count(size))):
                    yield reader.chunk(index)
                if wanted.first < chunk_count(size) <= wanted.first + wanted.count:
                    ended.append(wanted.blob)
        except NotHereError:
            yield encode_answer_header(BlobStatus.MISSING, 0)

    async def _hashes_of(self, blob: bytes) -> list[bytes]:
        """Returns the hashes of the blob's chunks, none if it is not here; it hashes a few chunks at a time. Bytes that
        a disk has changed are deleted instead: whoever received them would count a fault of ours.

        Those of one chunk, which groups are, are not remembered: a day has more of them than chunks are remembered.
        """
        if blob in self._hashes:
            self._hashes.move_to_end(blob)
            return self._hashes[blob]
        hashes: list[bytes] = []
        try:
            with self._store.reading(blob) as reader:
                size = reader.size
                while chunk := reader.chunk(len(hashes)):
                    hashes.append(hashlib.sha256(chunk).digest())
                    if len(hashes) % 16 == 0:
                        await anyio.lowlevel.checkpoint()
        except NotHereError:
            return []
        if len(hashes) != chunk_count(size) or id_of_chunk_hashes(size, hashes) != blob:
            log.warning("blob %s was damaged on the disk: it is deleted", blob.hex())
            self._store.discard(blob)
            return []
        if len(hashes) > 1:
            self._hashes[blob] = hashes
        while len(self._hashes) > 1 and sum(map(len, self._hashes.values())) > HASHES_REMEMBERED:
            self._hashes.popitem(last=False)
        return hashes

    async def _send(self, stream: Stream, upload: Upload, pieces: list[bytes]) -> None:
        payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        start = 0
        while start < len(payload):
            part = payload[start : start + (SEND_BYTES if upload.is_quick else self._part_bytes)]
            await self.turns.turn(upload)
            began_seconds = anyio.current_time()
            try:
                await self._send_part(stream, upload, part)
            finally:
                ended_seconds = anyio.current_time()
                self.turns.end_turn(upload, len(part), ended_seconds)
            start += len(part)
            upload.is_quick = self._bucket is None and ended_seconds - began_seconds <= QUICK_SECONDS

    async def _send_part(self, stream: Stream, upload: Upload, part: bytes) -> None:
        if self._bucket is not None:
            wait_seconds = self._bucket.reserve(len(part), now_seconds=anyio.current_time())
            upload.moved_at_seconds += wait_seconds  # until then it is we who are slow
            await anyio.sleep(wait_seconds)
        await send_within(stream, part, self._stall_seconds)
