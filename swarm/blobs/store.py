"""The content store: blobs found by the hash of their content. The swarm process owns it.

A blob of one chunk, as most rollout groups are, is packed into a database (``packed``); a larger one, as weights are,
is a file (``files``). Another process of the node hands blobs over through ``incoming/`` and gets them by path, small
ones by content.

Guarantees:

- A blob under its id is whole and was verified. ``kill -9`` at any moment leaves it whole or not at all.
- Chunks of a blob that is being fetched lie in ``partial/``, each verified before it was written. An interrupted fetch
  resumes there; every chunk is then verified again. Only chunks that arrived take room (``partials``).
- ``total_bytes`` is what the store takes on the disk, dead space of the database included, and is kept as a running
  total: no call reads a directory again, or more of the database than it needs.
- Eviction (``evictions``) takes interrupted fetches first, then the least recently used blobs, and never a blob that is
  pinned, being read by this process, or used by any process within ``grace_seconds``, so that a path just given to
  another process stays valid while it opens the file. A fetch of a group's size evicts no blob of our own before it is
  whole.
- With ``expire_seconds``, ``tend`` deletes blobs that may be a rollout group and were not used for so long, unless they
  are pinned or being read.

Nothing is synced to the disk: after a power failure a file may hold other bytes than its name says, which the reader
that decodes or receives it detects. A full disk raises ``StorageError``, and no blob is visible in part.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from protocol.blob_id import blob_id, chunk_count
from protocol.errors import StorageError
from protocol.limits import CHUNK_BYTES, GROUP_BLOB_BYTES
from swarm.blobs import incoming
from swarm.blobs.packed import PACKED_BYTES
from swarm.blobs.partial_blob import PartialBlob
from swarm.blobs.room import StoreRoom

ADOPTED_AT_ONCE = 500  # blobs in one call of ``tend``, some ten milliseconds


class NotHereError(StorageError):
    """The blob is not in the store: it never was, it expired, or it was evicted."""


@dataclass(frozen=True, slots=True)
class BlobReader:
    """A whole blob, as it is read: a small one from memory, a large one from its file."""

    size: int
    source: bytes | int  # content, or an open descriptor

    def chunk(self, index: int) -> bytes:
        """Returns the chunk at ``index``, empty beyond the last."""
        if isinstance(self.source, bytes):
            return self.source[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        return os.pread(self.source, CHUNK_BYTES, index * CHUNK_BYTES)


class ContentStore:
    """Blobs in ``directory``, which one object at a time may use. Without ``budget_bytes`` nothing is evicted."""

    def __init__(
        self,
        directory: Path,
        *,
        budget_bytes: int | None = None,
        grace_seconds: float = 60.0,
        expire_seconds: float | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self._inbox = incoming.HandedOver(directory)
        self._grace_seconds = grace_seconds
        self._wall_clock = wall_clock
        self._readers: Counter[bytes] = Counter()
        self._pinned: Counter[bytes] = Counter()
        self._room = StoreRoom(
            directory,
            budget_bytes=budget_bytes,
            grace_seconds=grace_seconds,
            expire_seconds=expire_seconds,
            wall_clock=wall_clock,
            kept=(self._pinned, self._readers),
        )
        self._packed, self._files, self._partials = self._room.packed, self._room.files, self._room.partials

    def path(self, blob: bytes) -> Path:
        """Returns a file with the blob, for another process to open within ``grace_seconds``.

        A packed blob becomes a file for it. Raises ``NotHereError``, or ``StorageError`` on a full disk.
        """
        if self._files.touch(blob, self._wall_clock()):
            return self._files.path(blob)
        content = self.packed_content(blob)
        if content is None:
            if self.touch(blob):  # it was adopted just now, as a file
                return self._files.path(blob)
            raise self._not_here(blob)
        self._write_file(blob, [content], fetched=False)
        with suppress(OSError):  # it expires
            self._packed.remove([blob])
        return self._files.path(blob)

    def packed_content(self, blob: bytes) -> bytes | None:
        """Returns the content of a packed blob, and marks it as used; None if it is a file or not here."""
        if not self.touch(blob):
            return None
        return self._packed.get(blob)

    def has(self, blob: bytes) -> bool:
        """Whether the whole blob is here now."""
        return self._find(blob) is not None

    def size(self, blob: bytes) -> int:
        """Returns the bytes of a blob. Raises ``NotHereError``."""
        size = self._find(blob)
        if size is None:
            raise self._not_here(blob)
        return size

    def put(self, content: bytes | Sequence[bytes | memoryview]) -> bytes:
        """Stores ``content``, whole or in parts; returns its id. If it is here already, only the hash is computed."""
        blob = blob_id(content)
        self.put_verified(blob, content)
        return blob

    def put_fetched(self, blob: bytes, content: bytes | memoryview) -> None:
        """Stores content that came from a peer and that the caller has verified against ``blob``."""
        self.put_verified(blob, content, fetched=True)

    def put_verified(
        self, blob: bytes, content: bytes | memoryview | Sequence[bytes | memoryview], *, fetched: bool = False
    ) -> None:
        """Stores content that the caller has verified against ``blob``."""
        if self.touch(blob):
            return
        parts = [content] if isinstance(content, bytes | memoryview) else content
        size = sum(len(part) for part in parts)
        if size > PACKED_BYTES:
            self._room.make(size)
            self._write_file(blob, parts, fetched=fetched)
            return
        self._room.make(self._packed.growth_bytes(size), with_reserve=True)
        with self._storing(blob):
            self._packed.put(blob, b"".join(parts), fetched=fetched, used_at_seconds=self._wall_clock())

    def touch(self, blob: bytes) -> bool:
        """Marks the blob as used now; returns whether it is here."""
        now_seconds = self._wall_clock()
        is_here = self._files.touch(blob, now_seconds) or self._packed.touch(blob, now_seconds)
        return is_here or (self._adopt(blob) and self.touch(blob))

    def take_over(self, blob: bytes) -> bool:
        """Adopts a blob that another process handed over, and marks it as used; returns whether it is here."""
        self._adopt(blob)  # also a copy of what is here already
        return self.touch(blob)

    @contextmanager
    def reading(self, blob: bytes) -> Iterator[BlobReader]:
        """Yields the blob, which is not evicted within the context. Raises ``NotHereError``."""
        content = self.packed_content(blob)
        if content is not None:
            yield BlobReader(len(content), content)
            return
        try:
            descriptor = os.open(self._files.path(blob), os.O_RDONLY)
        except OSError as error:
            raise self._not_here(blob) from error
        self._readers[blob] += 1
        try:
            self.touch(blob)
            yield BlobReader(os.fstat(descriptor).st_size, descriptor)
        finally:
            os.close(descriptor)
            self._readers[blob] -= 1
            if not self._readers[blob]:
                del self._readers[blob]

    def read(self, blob: bytes) -> bytes:
        """Returns the whole content. Raises ``NotHereError``."""
        with self.reading(blob) as reader:
            return b"".join(reader.chunk(index) for index in range(chunk_count(reader.size)))

    def pin(self, blob: bytes) -> None:
        """Keeps a blob, even before it is here, until ``unpin`` was called as often as this."""
        self._pinned[blob] += 1

    def unpin(self, blob: bytes) -> None:
        self._pinned[blob] -= 1
        if self._pinned[blob] <= 0:
            del self._pinned[blob]

    def resume(self, blob: bytes, size: int, chunk_hashes: Sequence[bytes] | None = None) -> PartialBlob | None:
        """Returns the place where the verified chunks of a blob are gathered.

        An interrupted fetch of the blob is continued. If there is none, a new one is started with ``chunk_hashes``,
        which the caller has verified against ``blob``; without them None is returned. It takes room only with its
        chunks.
        """
        partial = self._partials.resume(blob, size)
        if partial is not None or chunk_hashes is None:
            return partial
        return self._partials.start(blob, size, chunk_hashes)

    def write_chunk(self, partial: PartialBlob, index: int, chunk: bytes | memoryview) -> bool:
        """Verifies, then writes; returns False for a chunk that is not the blob's. Raises ``StorageError``."""
        self._room.make(len(chunk), with_reserve=True, spare_own=partial.size <= GROUP_BLOB_BYTES)
        with self._storing(partial.blob):
            return partial.write(index, chunk)

    def finish(self, partial: PartialBlob) -> None:
        """Makes a blob visible once all its chunks are there. Raises ``StorageError`` if some are missing."""
        if not partial.is_whole:
            of = f"{len(partial.missing())} of {chunk_count(partial.size)}"
            raise StorageError(f"{of} chunks of {partial.blob.hex()} are missing: fetch them first")
        with self._storing(partial.blob):
            self._files.directory.mkdir(parents=True, exist_ok=True)
            partial.publish(self._files.path(partial.blob))
            self._files.added(partial.blob, fetched=True, used_at_seconds=self._wall_clock())
        self._partials.finished(partial)
        if self._room.is_reserve_in_use:
            self.evict()  # the next fetch shall find its room free

    def tend(self) -> bool:
        """Does what is due: adopts what was handed over, deletes what expired, evicts, and compacts the database.

        Returns whether more is due now; a call takes some ten milliseconds.
        """
        now_seconds = self._wall_clock()
        adopted = [b for b in self._inbox.waiting(now_seconds - self._grace_seconds, ADOPTED_AT_ONCE) if self._adopt(b)]
        with suppress(OSError):  # a disk that takes no writes: tried again with the next call
            self._packed.flush(now_seconds)
        self._partials.drop_aged(now_seconds)
        has_more = self._room.expire()
        self.evict()
        with suppress(OSError):
            self._packed.compact()
        return has_more or len(adopted) >= ADOPTED_AT_ONCE

    def discard(self, blob: bytes) -> None:
        """Deletes a blob whose bytes are found to be others than its id says, so that it can be fetched again."""
        self._room.remove([blob])

    def total_bytes(self) -> int:
        """Returns what blobs and the chunks of unfinished fetches take on the disk.

        What another process handed over counts once it was adopted.
        """
        return self._room.total_bytes()

    def evict(self, *, room_bytes: int = 0, with_reserve: bool = True, spare_own: bool = False) -> list[bytes]:
        """Evicts until the store is within its budget with ``room_bytes`` to spare: ``StoreRoom.evict``."""
        return self._room.evict(room_bytes=room_bytes, with_reserve=with_reserve, spare_own=spare_own)

    def can_hold(self, size: int) -> bool:
        """Whether a blob of this size fits an empty store."""
        return self._room.can_hold(size)

    def raise_budget(self, budget_bytes: int) -> None:
        """Raises the budget to at least this. A store without a budget stays without."""
        self._room.raise_budget(budget_bytes)

    def close(self) -> None:
        """Closes the database, so that another object may use it; the next call opens it again."""
        with suppress(OSError):
            self._packed.flush(self._wall_clock())
        self._packed.close()

    def _find(self, blob: bytes) -> int | None:
        """The bytes of a blob, None if it is not here."""
        size = self._files.size(blob)
        if size is None:
            size = self._packed.size(blob)
        return self._find(blob) if size is None and self._adopt(blob) else size

    def _adopt(self, blob: bytes) -> bool:
        """Takes over a blob that another process handed over; returns whether there was one."""
        taken = self._inbox.take(blob, self._wall_clock())
        if taken is None:
            return False
        if isinstance(taken.source, bytes):
            try:
                self._packed.put(blob, taken.source, fetched=False, used_at_seconds=taken.used_at_seconds)
                taken.path.unlink(missing_ok=True)
                return True
            except OSError:
                pass  # on a full disk it stays the file that it is
        with suppress(OSError):
            self._files.directory.mkdir(parents=True, exist_ok=True)
            taken.path.replace(self._files.path(blob))
            self._files.added(blob, fetched=False, used_at_seconds=taken.used_at_seconds)
            return True
        return False

    def _write_file(self, blob: bytes, parts: Sequence[bytes | memoryview], *, fetched: bool) -> None:
        with self._storing(blob):
            incoming.write_whole(self._files.path(blob), parts, self._partials.directory)
            self._files.added(blob, fetched=fetched, used_at_seconds=self._wall_clock())

    @contextmanager
    def _storing(self, blob: bytes) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if incoming.is_disk_full(error):
                self._room.drop_partials(self._partials.held_bytes)  # what nobody waits for
            raise incoming.storage_error(self.directory / blob.hex(), error) from error

    def _not_here(self, blob: bytes) -> NotHereError:
        return NotHereError(f"blob {blob.hex()} is not in {self.directory}: fetch it again")
