"""The workers of one fetch: they bring many blobs from many peers at the same time.

One worker for each peer takes ranges from a shared queue and requests about one second's worth ahead on one stream.
Small blobs then take one round trip together, and large ones come from every peer that has them, each at its own speed.
A range that a peer has not sent for ``LATE_SECONDS`` is requested from idle peers too: from one after another of those
that have brought something, and at once from all that have brought nothing yet, since most of them may never do. So no
slow peer delays the end of a fetch, and hardly anything arrives twice.

A peer that is silent, sends wrong bytes or goes away is dropped for this fetch: its ranges return to the queue, and its
fault is reported. A peer that lacks one blob still serves others. When no listed peer is left, connected peers that
were not listed are asked, unless ``asks_others`` is false. Only verified bytes are written, and they are kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
from swarm.blobs.blob_server import ReportConduct
from swarm.blobs.fetch_job import BusyError, FetchJob, UnusableStreamError
from swarm.blobs.fetch_places import PEERS_AT_MOST, FetchPlaces
from swarm.host import Host, PeerId, Stream
from swarm.peers.reputation import Conduct
from swarm.stream_reader import SLOWEST_BYTES_PER_SECOND, STREAM_END_SECONDS, StreamReader, send_within

AHEAD_BYTES = 4 * 1024 * 1024  # requested from one peer and not yet received, at most
AHEAD_SECONDS = 1.0  # the same in seconds, at the rate at which the peer sends
MIN_AHEAD_BYTES = 1024 * 1024
RELAYED_BLOB_BYTES = 1 << 20  # at most, over a relay
LATE_SECONDS = 2.0  # after which a range requested from one peer is requested from an idle one too
CONNECT_SECONDS = 10.0
BUSY_SECONDS = 1.0  # until a peer that answered BUSY is asked again
REFUSALS = 3  # of a peer that ends streams before it answers and stays connected, as an overloaded one does

Reach = Callable[[PeerId, float], Awaitable[None]]  # (peer, deadline in seconds); connects or raises TransportError


@dataclass(slots=True)
class _Asked:
    """Who was asked for a range that is not here yet, and when the last of them that has brought anything was."""

    peers: set[PeerId]
    useful_seconds: float


class FetchRound:
    """Call ``run`` once. It returns when every job is over, or no peer is left to ask."""

    def __init__(
        self,
        host: Host,
        jobs: Sequence[FetchJob],
        reach: Reach,
        report: ReportConduct,
        stall_seconds: float,
        most_peers: int = PEERS_AT_MOST,
        *,
        asks_others: bool = True,
    ) -> None:
        self._host = host
        self._jobs = {job.blob: job for job in jobs}
        self._reach, self._report, self._stall_seconds = reach, report, stall_seconds
        self._changed = anyio.Event()
        self._changes = 0
        self._asks_others = asks_others
        self._places = FetchPlaces(most_peers)
        self._asked: dict[ChunkRange, _Asked] = {}
        self._sought_since: dict[ChunkRange, float] = {}  # kept when a range returns to the queue
        self._brought: Counter[PeerId] = Counter()  # chunks
        self._refusals: Counter[PeerId] = Counter()  # streams that ended before any answer

    async def run(self) -> None:
        await self._ask(list(dict.fromkeys(peer for job in self._jobs.values() for peer in job.sources)))
        if not self._asks_others:
            return
        connected = list(self._host.peers())
        for job in self._jobs.values():
            job.sources.update(dict.fromkeys(connected))
        await self._ask(connected)

    async def _ask(self, peers: Sequence[PeerId]) -> None:
        async with anyio.create_task_group() as workers:

            async def work(peer: PeerId) -> None:
                await self._work(peer)
                if self._is_over:  # others may still wait for a range that a quicker one brought
                    workers.cancel_scope.cancel()

            for peer in peers:
                workers.start_soon(work, peer)

    @property
    def _is_over(self) -> bool:
        return all(job.is_over for job in self._jobs.values())

    async def _work(self, peer: PeerId) -> None:
        scope = await self._places.take(peer)
        try:
            with scope:
                await self._serve_jobs_from(peer)
            if scope.cancelled_caught:
                self._drop(peer, "slower than others, and more peers waited", None)
        finally:
            self._places.give_back(peer)

    async def _serve_jobs_from(self, peer: PeerId) -> None:
        if not self._may_ask(peer):
            return
        try:
            await self._reach(peer, CONNECT_SECONDS)
        except TransportError as error:
            self._drop(peer, str(error), None)  # absence is no fault
        if self._host.is_relayed(peer):
            self._leave_large_ones(peer)
        while self._may_ask(peer):
            if not self._has_ranges(peer) and self._late(peer) is None:
                with anyio.move_on_after(LATE_SECONDS):
                    await self._changed.wait()  # others bring the rest, or fail and return it to the queue
                continue
            brought = self._brought[peer]
            try:
                await self._converse(peer)
            except BusyError:
                await anyio.sleep(BUSY_SECONDS)
            except UnusableStreamError:
                pass  # the job that raised it is over, or will not ask this peer again
            except IntegrityError as error:
                self._drop(peer, str(error), Conduct.WRONG_CHUNK)
            except DeadlineError as error:
                self._drop(peer, str(error), Conduct.STALLED)
            except TransportError as error:
                if self._brought[peer] == brought:
                    self._drop(peer, str(error), None)
                else:  # it serves, and gave our place to another: we ask again
                    await anyio.sleep(BUSY_SECONDS)

    def _may_ask(self, peer: PeerId) -> bool:
        return any(job.may_ask(peer) for job in self._jobs.values())

    def _has_ranges(self, peer: PeerId) -> bool:
        return any(job.has_ranges and job.may_ask(peer) for job in self._jobs.values())

    def _leave_large_ones(self, peer: PeerId) -> None:
        """Fetches large blobs, weights among them, from others than a peer that is connected through a relay only."""
        for job in self._jobs.values():
            if job.size > RELAYED_BLOB_BYTES and peer in job.sources:
                job.exclude(peer, "connected through a relay only, which carries small blobs alone")

    def _drop(self, peer: PeerId, because: str, conduct: Conduct | None) -> None:
        for job in self._jobs.values():
            job.exclude(peer, because)
        if conduct is not None:
            self._report(peer, conduct, because)
        self._notify()

    def _notify(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = anyio.Event()

    async def _converse(self, peer: PeerId) -> None:
        """Sends requests on one stream; returns when there is nothing more to ask this peer for now."""
        stream = await self._host.open_stream(peer, BLOB_PROTOCOL, deadline_seconds=CONNECT_SECONDS)
        reader = StreamReader(stream, stall_seconds=self._stall_seconds)
        asked: deque[ChunkRange] = deque()
        ended = False
        try:
            await self._exchange(peer, stream, reader, asked)
            ended = True
        except anyio.get_cancelled_exc_class():
            self._report_if_slow(peer, reader)
            raise
        except (DeadlineError, IntegrityError):
            raise
        except TransportError as error:
            is_refusal = not reader.received_bytes and peer in self._host.peers()
            if is_refusal and self._refusals[peer] < REFUSALS:
                self._refusals[peer] += 1
                raise BusyError(str(error)) from error
            if reader.received_bytes and not self._brought[peer]:
                self._report(peer, Conduct.BROKE_OFF, f"began to answer and sent no chunk: {error}")
            raise
        finally:
            for taken in reversed(asked):
                self._asked.pop(taken, None)
                self._jobs[taken.blob].give_back(taken)
            if asked:
                self._notify()
            with anyio.CancelScope(shield=True), suppress(TransportError):
                await (stream.finish(linger_seconds=STREAM_END_SECONDS) if ended else stream.reset())

    def _report_if_slow(self, peer: PeerId, reader: StreamReader) -> None:
        """The fetch ends while this peer owes an answer."""
        waited_seconds = anyio.current_time() - reader.asked_at_seconds
        silent_seconds = anyio.current_time() - reader.heard_at_seconds
        is_dripping = reader.answered_bytes < SLOWEST_BYTES_PER_SECOND * waited_seconds
        if waited_seconds >= LATE_SECONDS and (silent_seconds >= LATE_SECONDS or is_dripping):
            why = f"sent {reader.answered_bytes} bytes of an answer in {waited_seconds:.0f} s"
            self._report(peer, Conduct.STALLED, why)

    async def _exchange(self, peer: PeerId, stream: Stream, reader: StreamReader, asked: deque[ChunkRange]) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        ahead_bytes = 0  # requested and not yet received
        max_bytes = MIN_AHEAD_BYTES
        began_seconds, received_bytes = anyio.current_time(), 0
        exhausted_at = -1  # the change after which no range was left to request
        while True:
            if ahead_bytes <= max_bytes // 2 and exhausted_at != self._changes:
                request = self._take(peer, max_bytes - ahead_bytes, or_late=not asked)
                if request:
                    asked.extend(request)
                    ahead_bytes += sum(map(self._bytes_of, request))
                    await send_within(stream, framed_message(request), self._stall_seconds)
                else:
                    exhausted_at = self._changes
            if not asked:
                return
            reader.asked_now()
            # It stays in ``asked`` until all of it is here, so that a failure returns it to the queue.
            await self._receive(peer, reader, asked[0], buffer)
            arrived = asked.popleft()
            self._asked.pop(arrived, None)
            ahead_bytes -= self._bytes_of(arrived)
            received_bytes += self._bytes_of(arrived)
            lasted_seconds = max(anyio.current_time() - began_seconds, 1e-6)
            max_bytes = int(received_bytes / lasted_seconds * AHEAD_SECONDS)
            max_bytes = min(AHEAD_BYTES, max(MIN_AHEAD_BYTES, max_bytes))

    def _bytes_of(self, taken: ChunkRange) -> int:
        return self._jobs[taken.blob].bytes_of(taken)

    def _take(self, peer: PeerId, room_bytes: int, *, or_late: bool) -> list[ChunkRange]:
        """The ranges to request from this peer next, up to ``room_bytes`` and one range more."""
        request: list[ChunkRange] = []
        for job in self._jobs.values():
            while job.has_ranges and job.may_ask(peer) and room_bytes > 0 and len(request) < RANGES_PER_REQUEST:
                request.append(job.take())
                self._asked[request[-1]] = _Asked({peer}, anyio.current_time())
                self._sought_since.setdefault(request[-1], anyio.current_time())
                room_bytes -= job.bytes_of(request[-1])
        late = self._late(peer) if or_late and not request else None
        if late is not None:
            request.append(late)
            self._asked[late].peers.add(peer)
            if self._brought[peer]:
                self._asked[late].useful_seconds = anyio.current_time()
        return request

    def _late(self, peer: PeerId) -> ChunkRange | None:
        """The range that waits longest for other peers, if this one may be asked for it too."""
        before_seconds = anyio.current_time() - LATE_SECONDS
        late: list[tuple[float, ChunkRange]] = []
        for taken, asked in self._asked.items():
            first_seconds = self._sought_since[taken]
            since_seconds = asked.useful_seconds if self._brought[peer] else first_seconds
            if since_seconds <= before_seconds and peer not in asked.peers and self._jobs[taken.blob].may_ask(peer):
                late.append((first_seconds, taken))
        return min(late, key=lambda each: each[0])[1] if late else None

    async def _receive(self, peer: PeerId, reader: StreamReader, taken: ChunkRange, buffer: memoryview) -> None:
        job = self._jobs[taken.blob]
        status, size = decode_answer_header(await reader.exactly(ANSWER_HEADER_BYTES))
        if status == BlobStatus.BUSY:
            raise BusyError(f"{peer} is busy")
        if status != BlobStatus.HERE:
            if peer in job.listed:
                self._report(peer, Conduct.MISSING, f"has no blob {job.blob.hex()}")
            job.exclude(peer, "does not have it")
            job.give_back(taken)
            self._notify()
            return
        if size != job.size:
            # The id shows which size is true only once all is here, so that no peer is blamed.
            because = f"has {size} bytes under this id; {job.size} were advertised"
            job.exclude(peer, because)
            raise UnusableStreamError(f"{peer} {because}")
        if taken.hashes:
            raw = bytes(await reader.exactly(HASH_BYTES * chunk_count(size)))
            job.accept_hashes([raw[at : at + HASH_BYTES] for at in range(0, len(raw), HASH_BYTES)])
            self._notify()
        for index in job.indices(taken):
            chunk = buffer[: job.chunk_bytes(index)]
            await reader.fill(chunk)
            job.accept_chunk(index, chunk)
            self._brought[peer] += 1
            self._places.received(peer, len(chunk))
        if job.is_over:
            self._notify()
