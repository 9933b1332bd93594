"""One blob of a fetch: the chunks that no worker fetches yet, the peers that failed, and the outcome. No network."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence

from protocol.blob_id import chunk_count, id_of_chunk_hashes
from protocol.errors import IntegrityError, ProtocolError, StorageError
from protocol.limits import BLOB_BYTES
from protocol.streams.blob_messages import ChunkRange
from swarm.api import Wanted
from swarm.blobs.partial_blob import PartialBlob, chunk_size
from swarm.blobs.store import ContentStore
from swarm.host import PeerId

RANGE_CHUNKS = 4  # in one request: 1 MiB, so that a slow peer delays little


class FetchJob:
    """Workers take ranges of chunks, and return them with ``give_back`` when they fail."""

    def __init__(self, wanted: Wanted, store: ContentStore) -> None:
        self.blob = wanted.blob
        self.size = wanted.size
        self.listed = frozenset(wanted.peers)
        self.sources: dict[PeerId, None] = dict.fromkeys(wanted.peers)  # peers to ask, best first
        self.failures: dict[PeerId, str] = {}
        self.failed_because: str | None = None  # a failure that no other peer could help with
        self.is_done = False
        self._store = store
        self._partial: PartialBlob | None = None
        self._queue: deque[ChunkRange] = deque()
        if not 1 <= self.size <= BLOB_BYTES:
            self.failed_because = f"a size of {self.size} bytes; 1 to {BLOB_BYTES} are allowed"
        elif not store.can_hold(self.size):
            self.failed_because = f"{self.size} bytes are more than the whole content store; raise swarm.store_bytes"
        elif self.is_single:
            self._queue.append(ChunkRange(self.blob, 0, 1, False))
        else:
            self._partial = store.resume(self.blob, self.size)
            if self._partial is None:
                self._queue.append(ChunkRange(self.blob, 0, RANGE_CHUNKS, True))
            else:
                self._queue.extend(self._ranges(self._partial.missing()))
                self._finish_if_whole()

    @property
    def is_single(self) -> bool:
        """Whether the blob is one chunk, whose hash follows from the id, so that no list of hashes is needed."""
        return chunk_count(self.size) == 1

    @property
    def here_bytes(self) -> int:
        """Bytes verified and kept so far."""
        if self.is_done:
            return self.size
        return self._partial.here_bytes if self._partial is not None else 0

    @property
    def is_over(self) -> bool:
        return self.is_done or self.failed_because is not None

    @property
    def has_ranges(self) -> bool:
        return bool(self._queue) and not self.is_over

    def may_ask(self, peer: PeerId) -> bool:
        return not self.is_over and peer in self.sources and peer not in self.failures

    def take(self) -> ChunkRange:
        return self._queue.popleft()

    def give_back(self, taken: ChunkRange) -> None:
        """Returns the part of a range that did not arrive, for another worker."""
        if self.is_over:
            return
        if self._partial is None:
            self._queue.appendleft(taken)
            return
        span = range(taken.first, taken.first + taken.count)
        self._queue.extendleft(self._ranges([i for i in self._partial.missing() if i in span]))

    def exclude(self, peer: PeerId, because: str) -> None:
        if not self.is_over:
            self.failures.setdefault(peer, because)

    def reason(self) -> str:
        """Returns why the blob is not here, in words."""
        if self.failed_because is not None:
            return self.failed_because
        return (
            "; ".join(f"{peer}: {because}" for peer, because in self.failures.items()) or "no peer is known to have it"
        )

    def bytes_of(self, taken: ChunkRange) -> int:
        return sum(self.chunk_bytes(index) for index in self.indices(taken))

    def chunk_bytes(self, index: int) -> int:
        return chunk_size(self.size, index)

    def indices(self, taken: ChunkRange) -> range:
        return range(taken.first, min(taken.first + taken.count, chunk_count(self.size)))

    def accept_hashes(self, chunk_hashes: Sequence[bytes]) -> None:
        """Raises ``IntegrityError`` if they are not the blob's hashes."""
        if id_of_chunk_hashes(self.size, chunk_hashes) != self.blob:
            raise IntegrityError(f"chunk hashes that are not those of blob {self.blob.hex()}")
        if self._partial is not None or self.is_over:
            return
        self._partial = self._store.resume(self.blob, self.size, chunk_hashes)
        assert self._partial is not None
        self._queue.extend(self._ranges(list(range(RANGE_CHUNKS, chunk_count(self.size)))))

    def accept_chunk(self, index: int, chunk: memoryview) -> None:
        """Verifies and stores one chunk; the last one makes the blob visible. Raises ``IntegrityError``."""
        if self.is_over:
            return
        try:
            if self.is_single:
                if id_of_chunk_hashes(self.size, [hashlib.sha256(chunk).digest()]) != self.blob:
                    raise IntegrityError(f"{len(chunk)} bytes that are not blob {self.blob.hex()}")
                self._store.put_fetched(self.blob, chunk)
                self.is_done = True
            elif self._partial is not None:
                if not self._store.write_chunk(self._partial, index, chunk):
                    raise IntegrityError(f"chunk {index} of blob {self.blob.hex()} does not match its hash")
                self._finish_if_whole()
        except StorageError as error:
            self.failed_because = str(error)

    def close(self) -> None:
        """Closes the files; verified chunks stay for a later fetch."""
        if self._partial is not None:
            self._partial.close()

    def _finish_if_whole(self) -> None:
        if self._partial is not None and self._partial.is_whole:
            self._store.finish(self._partial)
            self.is_done = True

    def _ranges(self, indices: Sequence[int]) -> Iterator[ChunkRange]:
        """Yields runs of consecutive chunks, at most ``RANGE_CHUNKS`` each."""
        first = count = 0
        for index in indices:
            if count and (index != first + count or count == RANGE_CHUNKS):
                yield ChunkRange(self.blob, first, count, False)
                count = 0
            if not count:
                first = index
            count += 1
        if count:
            yield ChunkRange(self.blob, first, count, False)


class UnusableStreamError(ProtocolError):
    """The rest of this stream cannot be used; the peer may be asked for other blobs on a new one."""

    reason = "unusable_stream"


class BusyError(UnusableStreamError):
    """The peer serves too many others. That is no fault of it: it may be asked again in a while, and keeps its
    reputation."""
