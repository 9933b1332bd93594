"""Blob exchange ``/starling/blobs/1``: the client. It fetches many blobs from many peers at the same time.

One worker for each peer takes ranges from a shared queue and requests about one second's worth ahead on one stream.
Small blobs then take one round trip together, and large ones come from every peer that has them, each at its own speed.
A range that a peer has not sent for ``LATE_SECONDS`` is requested from an idle peer too, so that the slowest peer does
not delay the end of a fetch. A peer that is silent, sends wrong bytes or goes away is dropped for this fetch: its
ranges return to the queue, and its fault is reported. A peer that lacks one blob still serves others. When no listed
peer is left, connected peers that were not listed are asked. Only verified bytes are written, and they are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio

from protocol.blob_id import HASH_BYTES, chunk_count
from protocol.errors import DeadlineError, IntegrityError, TransportError
from protocol.limits import CHUNK_BYTES, RANGES_PER_REQUEST
from protocol.streams.blob_messages import (
    ANSWER_HEADER_BYTES,
    BLOB_PROTOCOL,
    BlobStatus,
    ChunkRange,
    decode_answer_header,
)
from protocol.streams.framing import framed_message
from swarm.api import Fetched, Wanted
from swarm.blobs.blob_server import STALL_SECONDS, Report
from swarm.blobs.fetch_job import FetchJob, UnusableStreamError
from swarm.blobs.store import ContentStore
from swarm.host import Host, PeerId, Stream
from swarm.peers.reputation import Conduct
from swarm.stream_reader import StreamReader

AHEAD_BYTES = 4 * 1024 * 1024  # requested from one peer and not yet received, at most
AHEAD_SECONDS = 1.0  # the same in seconds, at the rate at which the peer sends
MIN_AHEAD_BYTES = 1024 * 1024
LATE_SECONDS = 2.0  # after which a range requested from one peer is requested from an idle one too
PEERS_AT_ONCE = 8
CONNECT_SECONDS = 10.0
STREAM_END_SECONDS = 1.0  # for a peer to end a stream after its last answer
BUSY_SECONDS = 1.0  # until a peer that answered BUSY is asked again

Reach = Callable[[PeerId, float], Awaitable[None]]  # (peer, deadline in seconds); connects or raises TransportError


class Fetcher:
    """Brings wanted blobs into the store. Fetches may run at the same time; each blob is fetched by one of them."""

    def __init__(
        self, host: Host, store: ContentStore, *, reach: Reach, report: Report, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self.host = host
        self.reach = reach
        self.report = report
        self.stall_seconds = stall_seconds
        self._store = store
        self._on_the_way: dict[bytes, anyio.Event] = {}
        self._jobs: dict[bytes, FetchJob] = {}  # of the same blobs

    async def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]:
        """One outcome for each, in order, within the deadline. The next fetch resumes a blob that arrived in part."""
        missing = {w.blob: w for w in wanted if not self._store.touch(w.blob)}
        others = [self._on_the_way[blob] for blob in missing if blob in self._on_the_way]
        jobs = {blob: FetchJob(w, self._store) for blob, w in missing.items() if blob not in self._on_the_way}
        self._on_the_way.update({blob: anyio.Event() for blob in jobs})
        self._jobs.update(jobs)
        try:
            with anyio.move_on_after(deadline_seconds) as scope:
                await _Round(self, list(jobs.values())).run()
                for arrived in others:
                    await arrived.wait()
        finally:
            for blob, job in jobs.items():
                job.close()
                del self._jobs[blob]
                self._on_the_way.pop(blob).set()
        late = f"not here after {deadline_seconds:g} s"
        return [self._outcome(w.blob, jobs.get(w.blob), late if scope.cancelled_caught else "") for w in wanted]

    def here_bytes(self, blob: bytes) -> int:
        """The verified bytes of a blob that is here, or is being fetched."""
        job = self._jobs.get(blob)
        if job is not None:
            return job.here_bytes
        return self._store.size(blob) if self._store.has(blob) else 0

    def _outcome(self, blob: bytes, job: FetchJob | None, late: str) -> Fetched:
        if self._store.touch(blob):
            return Fetched(blob, str(self._store.path(blob)), None)
        if job is None:
            return Fetched(blob, None, late or "another fetch of it failed")
        return Fetched(blob, None, f"{late}; {job.reason()}" if late else job.reason())


class _Round:
    """The workers of one fetch."""

    def __init__(self, fetcher: Fetcher, jobs: Sequence[FetchJob]) -> None:
        self._fetcher = fetcher
        self._jobs = {job.blob: job for job in jobs}
        self._changed = anyio.Event()
        self._changes = 0
        self._places = anyio.Semaphore(PEERS_AT_ONCE)
        self._asked: dict[
            ChunkRange, tuple[PeerId, float]
        ] = {}  # peer and time; a range requested from two is not in it
        self._waiting: dict[PeerId, StreamReader] = {}  # for an answer

    async def run(self) -> None:
        await self._ask(list(dict.fromkeys(peer for job in self._jobs.values() for peer in job.sources)))
        connected = list(self._fetcher.host.peers())
        for job in self._jobs.values():
            job.sources.extend(peer for peer in connected if peer not in job.sources)
        await self._ask(connected)

    async def _ask(self, peers: Sequence[PeerId]) -> None:
        async with anyio.create_task_group() as workers:

            async def work(peer: PeerId) -> None:
                await self._work(peer)
                if self._is_over:  # others may still wait for a range that a quicker one brought
                    self._report_silent()
                    workers.cancel_scope.cancel()

            for peer in peers:
                workers.start_soon(work, peer)

    def _report_silent(self) -> None:
        for peer, reader in self._waiting.items():
            silent_seconds = anyio.current_time() - reader.heard_at_seconds
            if silent_seconds >= LATE_SECONDS:
                why = f"sent nothing for {silent_seconds:.0f} s, and others brought it"
                self._fetcher.report(peer, Conduct.STALLED, why)
        self._waiting.clear()

    @property
    def _is_over(self) -> bool:
        return all(job.is_over for job in self._jobs.values())

    async def _work(self, peer: PeerId) -> None:
        async with self._places:
            try:
                await self._fetcher.reach(peer, CONNECT_SECONDS)
            except TransportError as error:
                self._drop(peer, str(error), None)  # absence is no fault
            while self._may_ask(peer):
                try:
                    await self._converse(peer)
                except UnusableStreamError:
                    pass  # the job that raised it is over, or will not ask this peer again
                except IntegrityError as error:
                    self._drop(peer, str(error), Conduct.WRONG_CHUNK)
                except DeadlineError as error:
                    self._drop(peer, str(error), Conduct.STALLED)
                except TransportError as error:
                    self._drop(peer, str(error), None)

    def _may_ask(self, peer: PeerId) -> bool:
        return any(job.may_ask(peer) for job in self._jobs.values())

    def _drop(self, peer: PeerId, because: str, conduct: Conduct | None) -> None:
        for job in self._jobs.values():
            job.exclude(peer, because)
        if conduct is not None:
            self._fetcher.report(peer, conduct, because)
        self._notify()

    def _notify(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = anyio.Event()

    async def _converse(self, peer: PeerId) -> None:
        """Sends requests on one stream; returns when this peer has nothing more to serve."""
        stream = await self._fetcher.host.open_stream(peer, BLOB_PROTOCOL, deadline_seconds=CONNECT_SECONDS)
        asked: deque[ChunkRange] = deque()
        ended = False
        try:
            await self._exchange(peer, stream, asked)
            ended = True
        finally:
            self._waiting.pop(peer, None)
            for taken in reversed(asked):
                self._asked.pop(taken, None)
                self._jobs[taken.blob].give_back(taken)
            if asked:
                self._notify()
            with anyio.CancelScope(shield=True), suppress(TransportError):
                await (stream.finish(linger_seconds=STREAM_END_SECONDS) if ended else stream.reset())

    async def _exchange(self, peer: PeerId, stream: Stream, asked: deque[ChunkRange]) -> None:
        reader = StreamReader(stream, stall_seconds=self._fetcher.stall_seconds)
        buffer = memoryview(bytearray(CHUNK_BYTES))
        ahead_bytes = 0  # requested and not yet received
        max_bytes = MIN_AHEAD_BYTES
        began_seconds, received_bytes = anyio.current_time(), 0
        exhausted_at = -1  # the change after which no range was left to request
        while True:
            if ahead_bytes <= max_bytes // 2 and exhausted_at != self._changes:
                request = self._take(peer, max_bytes - ahead_bytes)
                if not request:
                    exhausted_at = self._changes
                else:
                    asked.extend(request)
                    ahead_bytes += sum(map(self._bytes_of, request))
                    await self._send(stream, request)
            if asked:
                reader.asked_now()
                self._waiting[peer] = reader
                # It stays in ``asked`` until all of it is here, so that a failure returns it to the queue.
                await self._receive(peer, reader, asked[0], buffer)
                self._waiting.pop(peer, None)
                arrived = asked.popleft()
                self._asked.pop(arrived, None)
                ahead_bytes -= self._bytes_of(arrived)
                received_bytes += self._bytes_of(arrived)
                lasted_seconds = max(anyio.current_time() - began_seconds, 1e-6)
                max_bytes = int(received_bytes / lasted_seconds * AHEAD_SECONDS)
                max_bytes = min(AHEAD_BYTES, max(MIN_AHEAD_BYTES, max_bytes))
            elif self._may_ask(peer):
                with anyio.move_on_after(LATE_SECONDS) as waited:
                    await self._changed.wait()  # others bring the rest, or fail and return it to the queue
                late = self._late(peer) if waited.cancelled_caught else None
                if late is not None:
                    asked.append(late)
                    ahead_bytes += self._bytes_of(late)
                    await self._send(stream, [late])
            else:
                return

    async def _send(self, stream: Stream, request: list[ChunkRange]) -> None:
        with anyio.move_on_after(self._fetcher.stall_seconds) as scope:
            await stream.send(framed_message(request))
        if scope.cancelled_caught:
            raise DeadlineError(f"{stream.peer} took no request for {self._fetcher.stall_seconds:g} s")

    def _bytes_of(self, taken: ChunkRange) -> int:
        return self._jobs[taken.blob].bytes_of(taken)

    def _take(self, peer: PeerId, room_bytes: int) -> list[ChunkRange]:
        """The ranges to request from this peer next, up to ``room_bytes`` and one range more."""
        request: list[ChunkRange] = []
        for job in self._jobs.values():
            while job.has_ranges and job.may_ask(peer):
                if room_bytes <= 0 or len(request) == RANGES_PER_REQUEST:
                    return request
                request.append(job.take())
                self._asked[request[-1]] = (peer, anyio.current_time())
                room_bytes -= job.bytes_of(request[-1])
        return request

    def _late(self, peer: PeerId) -> ChunkRange | None:
        """The range requested from another peer longest ago, if this one may be asked for it too; returned once."""
        before_seconds = anyio.current_time() - LATE_SECONDS
        for taken, (whom, at_seconds) in self._asked.items():
            if whom != peer and at_seconds <= before_seconds and self._jobs[taken.blob].may_ask(peer):
                del self._asked[taken]
                return taken
        return None

    async def _receive(self, peer: PeerId, reader: StreamReader, taken: ChunkRange, buffer: memoryview) -> None:
        job = self._jobs[taken.blob]
        status, size = decode_answer_header(await reader.exactly(ANSWER_HEADER_BYTES))
        if status == BlobStatus.BUSY:
            await anyio.sleep(BUSY_SECONDS)
            raise UnusableStreamError(f"{peer} is busy")
        if status != BlobStatus.HERE:
            if peer in job.listed:
                self._fetcher.report(peer, Conduct.MISSING, f"has no blob {job.blob.hex()}")
            job.exclude(peer, "does not have it")
            job.give_back(taken)
            self._notify()
            return
        if size != job.size:
            # The id shows which size is true only once all is here, so that no peer is blamed.
            job.exclude(peer, f"has {size} bytes under this id; {job.size} were advertised")
            raise UnusableStreamError(job.failures[peer])
        if taken.hashes:
            raw = bytes(await reader.exactly(HASH_BYTES * chunk_count(size)))
            job.accept_hashes([raw[at : at + HASH_BYTES] for at in range(0, len(raw), HASH_BYTES)])
            self._notify()
        for index in job.indices(taken):
            chunk = buffer[: job.chunk_bytes(index)]
            await reader.fill(chunk)
            job.accept_chunk(index, chunk)
        if job.is_over:
            self._notify()
