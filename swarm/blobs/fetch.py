"""Blob exchange ``/starling/blobs/1``: the client. It brings wanted blobs into the store, each fetched once at a time.

``fetch_round`` has the workers of one fetch, ``fetch_job`` the state of one blob.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from protocol.errors import StorageError
from swarm.api import MAX_INLINE_BYTES, Fetched, Wanted
from swarm.blobs.blob_server import STALL_SECONDS, ReportConduct
from swarm.blobs.fetch_job import FetchJob
from swarm.blobs.fetch_places import PEERS_AT_MOST
from swarm.blobs.fetch_round import FetchRound
from swarm.blobs.store import ContentStore
from swarm.host import Host, PeerId

Reach = Callable[[PeerId, float], Awaitable[None]]  # (peer, deadline in seconds); connects or raises TransportError


class Fetcher:
    """Brings wanted blobs into the store. Fetches may run at the same time; each blob is fetched by one of them."""

    def __init__(
        self,
        host: Host,
        store: ContentStore,
        *,
        reach: Reach,
        report: ReportConduct,
        stall_seconds: float = STALL_SECONDS,
        most_peers: int = PEERS_AT_MOST,
    ) -> None:
        """``most_peers`` are asked at the same time in one fetch."""
        self._most_peers = most_peers
        self.host = host
        self.reach = reach
        self.report = report
        self.stall_seconds = stall_seconds
        self._store = store
        self._on_the_way: dict[bytes, anyio.Event] = {}
        self._jobs: dict[bytes, FetchJob] = {}  # of the same blobs

    async def fetch(
        self, wanted: Sequence[Wanted], *, deadline_seconds: float, asks_others: bool = True
    ) -> list[Fetched]:
        """One outcome for each, in order, within the deadline. The next fetch resumes a blob that arrived in part.

        ``asks_others``: than the peers listed for a blob, once none of these is left.
        A blob that another fetch seeks is waited for, and sought again from our own peers if that fetch fails.
        """
        jobs: dict[bytes, FetchJob] = {}
        with anyio.move_on_after(deadline_seconds) as scope:
            left = {w.blob: w for w in wanted if not self._store.touch(w.blob)}
            while left:
                others = [self._on_the_way[blob] for blob in left if blob in self._on_the_way]
                now = [w for w in left.values() if w.blob not in self._on_the_way]
                await self._fetch_now(now, jobs, asks_others=asks_others)
                for arrived in others:
                    await arrived.wait()
                left = {blob: w for blob, w in left.items() if blob not in jobs and not self._store.touch(blob)}
        late = f"not here after {deadline_seconds:g} s"
        inline_bytes = MAX_INLINE_BYTES
        outcomes: list[Fetched] = []
        for each in wanted:
            outcome = self._outcome(
                each.blob, jobs.get(each.blob), late if scope.cancelled_caught else "", inline_bytes
            )
            inline_bytes -= len(outcome.content or b"")
            outcomes.append(outcome)
        return outcomes

    async def _fetch_now(self, wanted: Sequence[Wanted], jobs: dict[bytes, FetchJob], *, asks_others: bool) -> None:
        """Fetches them, and adds their jobs to ``jobs``."""
        began = {w.blob: FetchJob(w, self._store) for w in wanted}
        jobs.update(began)
        self._jobs.update(began)
        self._on_the_way.update({blob: anyio.Event() for blob in began})
        try:
            await FetchRound(
                self.host,
                list(began.values()),
                self.reach,
                self.report,
                self.stall_seconds,
                self._most_peers,
                asks_others=asks_others,
            ).run()
        finally:
            for blob, job in began.items():
                job.close()
                del self._jobs[blob]
                self._on_the_way.pop(blob).set()

    def here_bytes(self, blob: bytes) -> int:
        """The verified bytes of a blob that is here, or is being fetched."""
        job = self._jobs.get(blob)
        if job is not None:
            return job.here_bytes
        return self._store.size(blob) if self._store.has(blob) else 0

    def _outcome(self, blob: bytes, job: FetchJob | None, late: str, inline_bytes: int) -> Fetched:
        try:
            if self._store.has(blob):
                content = self._store.packed_content(blob) if self._store.size(blob) <= inline_bytes else None
                return Fetched(blob, None if content is not None else str(self._store.path(blob)), None, content)
        except StorageError as error:
            return Fetched(blob, None, str(error))
        if job is None:
            return Fetched(blob, None, late or "another fetch of it failed")
        return Fetched(blob, None, f"{late}; {job.reason()}" if late else job.reason())
