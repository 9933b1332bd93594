"""The content store: blobs as files named by the hash of their content.

Guarantees:

- A file under its id is whole and was verified: it appears by an atomic rename after its last byte, never before.
- Chunks of a blob that is being fetched lie in ``partial/``, each verified before it was written. An interrupted fetch
  resumes there; every chunk is then verified again. Only chunks that arrived take room (``partials``).
- Two processes may use one store: writers rename, readers open by name, and each reads the directory again before it
  decides. There is no lock that a crash could leave behind. Only the swarm process evicts.
- Eviction (``evictions``) takes interrupted fetches first, then the least recently used blobs, and never a blob that is
  pinned, being read by this process, or used by any process within ``grace_seconds``, so that a path just given to
  another process stays valid while it opens the file. A fetch of a group's size evicts no blob of our own before it is
  whole.

Nothing is synced to the disk: after a power failure a file may hold other bytes than its name says, which the reader
that decodes or receives it detects. A full disk raises ``StorageError``, and no blob is visible in part.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from protocol.blob_id import HASH_BYTES, blob_id, chunk_count
from protocol.errors import StorageError
from protocol.limits import GROUP_BLOB_BYTES
from swarm.blobs.evictions import RESERVE_SHARE, StoredBlob, choose_evictions
from swarm.blobs.partial_blob import PartialBlob
from swarm.blobs.partials import Partials, files_in

RESCAN_SECONDS = 10.0  # the greatest age of a directory listing on which a decision may rest


class NotHereError(StorageError):
    """The blob is not in the store: it never was, or it was evicted."""


class ContentStore:
    """Blobs in ``directory``. Without ``budget_bytes`` this process only adds and reads; another one evicts."""

    def __init__(
        self,
        directory: Path,
        *,
        budget_bytes: int | None = None,
        grace_seconds: float = 60.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self._partials = Partials(directory / "partial")
        self._budget_bytes = budget_bytes
        self._grace_seconds = grace_seconds
        self._wall_clock = wall_clock
        self._blobs: dict[bytes, StoredBlob] = {}
        self._whole_bytes = 0  # of ``_blobs``
        self._fetched: set[bytes] = set()  # of ``_blobs``, those that this process fetched from peers
        self._scanned_at: float | None = None
        self._readers: Counter[bytes] = Counter()
        self._pinned: Counter[bytes] = Counter()

    def path(self, blob: bytes) -> Path:
        """Returns where ``blob`` lies if the store has it."""
        if len(blob) != HASH_BYTES:
            raise ValueError(f"a blob id has {HASH_BYTES} bytes, not {len(blob)}")
        return self.directory / blob.hex()

    def has(self, blob: bytes) -> bool:
        """Whether the whole blob is here now. Reads the disk: another process may have added or evicted the blob."""
        return self.path(blob).is_file()

    def size(self, blob: bytes) -> int:
        """Returns the bytes of a blob. Raises ``NotHereError``."""
        try:
            return self.path(blob).stat().st_size
        except OSError as error:
            raise NotHereError(f"blob {blob.hex()} is not in {self.directory}: fetch it again") from error

    def put(self, content: bytes | Sequence[bytes | memoryview]) -> bytes:
        """Stores ``content``, whole or in parts; returns its id. If it is here already, only the hash is computed."""
        blob = blob_id(content)
        self.put_verified(blob, content)
        return blob

    def put_fetched(self, blob: bytes, content: bytes | memoryview) -> Path:
        """Stores content that came from a peer and that the caller has verified against ``blob``."""
        target = self.put_verified(blob, content)
        self._fetched.add(blob)
        return target

    def put_verified(self, blob: bytes, content: bytes | memoryview | Sequence[bytes | memoryview]) -> Path:
        """Stores content that the caller has verified against ``blob``."""
        parts = [content] if isinstance(content, bytes | memoryview) else content
        size = sum(len(part) for part in parts)
        target = self.path(blob)
        if self.touch(blob):
            return target
        self._make_room(size)
        temporary = self._partials.directory / f"{target.name}.{os.getpid()}-{os.urandom(4).hex()}"
        with self._storing(target):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("wb") as file:
                    file.writelines(parts)
                now_seconds = self._wall_clock()
                os.utime(temporary, (now_seconds, now_seconds))
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        self._count(blob, size)
        return target

    def touch(self, blob: bytes) -> bool:
        """Marks the blob as used now; returns whether it is here."""
        now_seconds = self._wall_clock()
        try:
            os.utime(self.path(blob), (now_seconds, now_seconds))
        except OSError:
            return False
        if blob in self._blobs:
            self._blobs[blob] = StoredBlob(self._blobs[blob].size, now_seconds)
        return True

    @contextmanager
    def reading(self, blob: bytes) -> Iterator[int]:
        """Gives an open descriptor of the blob, which is not evicted meanwhile. Raises ``NotHereError``."""
        try:
            descriptor = os.open(self.path(blob), os.O_RDONLY)
        except OSError as error:
            raise NotHereError(f"blob {blob.hex()} is not in {self.directory}: fetch it again") from error
        self._readers[blob] += 1
        try:
            self.touch(blob)
            yield descriptor
        finally:
            os.close(descriptor)
            self._readers[blob] -= 1
            if not self._readers[blob]:
                del self._readers[blob]

    def read(self, blob: bytes) -> bytes:
        """Returns the whole content. Raises ``NotHereError``."""
        with self.reading(blob) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read()

    def pin(self, blob: bytes) -> None:
        """Keeps a blob from eviction, even before it is here, until ``unpin`` was called as often as this."""
        self._pinned[blob] += 1

    def unpin(self, blob: bytes) -> None:
        self._pinned[blob] -= 1
        if self._pinned[blob] <= 0:
            del self._pinned[blob]

    def can_hold(self, size: int) -> bool:
        """Whether a blob of this size fits an empty store."""
        return self._budget_bytes is None or size <= self._budget_bytes

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
        self._make_room(len(chunk), with_reserve=True, spare_own=partial.size <= GROUP_BLOB_BYTES)
        with self._storing(self.path(partial.blob)):
            return partial.write(index, chunk)

    def finish(self, partial: PartialBlob) -> Path:
        """Makes a blob visible once all its chunks are there. Raises ``StorageError`` if some are missing."""
        if not partial.is_whole:
            of = f"{len(partial.missing())} of {chunk_count(partial.size)}"
            raise StorageError(f"{of} chunks of {partial.blob.hex()} are missing: fetch them first")
        target = self.path(partial.blob)
        with self._storing(target):
            partial.publish(target)
        self._partials.finished(partial)
        self._count(partial.blob, partial.size)
        self._fetched.add(partial.blob)
        self.touch(partial.blob)
        if self._budget_bytes is not None and self.total_bytes() > (1.0 - RESERVE_SHARE) * self._budget_bytes:
            self.evict()  # the next fetch shall find its room free
        return target

    def total_bytes(self) -> int:
        """Returns the bytes of all blobs and of the chunks of unfinished fetches.

        What another process added counts after at most ``RESCAN_SECONDS``.
        """
        self._rescan(RESCAN_SECONDS)
        return self._held_bytes()

    def evict(self, *, room_bytes: int = 0, with_reserve: bool = True, spare_own: bool = False) -> list[bytes]:
        """Evicts until the store is within its budget with ``room_bytes`` to spare, if it can. Returns the evicted.

        ``with_reserve`` keeps at least ``RESERVE_SHARE`` free; with ``spare_own`` only fetched blobs are evicted.
        """
        if self._budget_bytes is None:
            return []
        if with_reserve:
            room_bytes = max(room_bytes, int(RESERVE_SHARE * self._budget_bytes))
        self._rescan(0.0)
        self._drop_partials(self._held_bytes() + room_bytes - self._budget_bytes)
        evicted = choose_evictions(
            self._blobs,
            budget_bytes=self._budget_bytes,
            room_bytes=room_bytes + self._partials.held_bytes,
            now_seconds=self._wall_clock(),
            grace_seconds=self._grace_seconds,
            kept=lambda blob: blob in self._pinned or blob in self._readers,
            fetched=self._fetched,
            spare_own=spare_own,
        )
        for blob in evicted:
            self.path(blob).unlink(missing_ok=True)
            self._whole_bytes -= self._blobs.pop(blob).size
            self._fetched.discard(blob)
        return evicted

    def raise_budget(self, budget_bytes: int) -> None:
        """Raises the budget to at least this. A store without a budget stays without."""
        if self._budget_bytes is not None:
            self._budget_bytes = max(self._budget_bytes, budget_bytes)

    def _held_bytes(self) -> int:
        return self._whole_bytes + self._partials.held_bytes

    def _count(self, blob: bytes, size: int) -> None:
        if blob not in self._blobs:
            self._whole_bytes += size
        self._blobs[blob] = StoredBlob(size, self._wall_clock())

    def _drop_partials(self, excess_bytes: int) -> int:
        return self._partials.drop(
            budget_bytes=self._budget_bytes or 0, excess_bytes=excess_bytes, now_seconds=self._wall_clock()
        )

    def _make_room(self, size: int, *, with_reserve: bool = False, spare_own: bool = False) -> None:
        if self._budget_bytes is None:
            return
        if self.total_bytes() + size > self._budget_bytes:
            self.evict(room_bytes=size, with_reserve=with_reserve, spare_own=spare_own)
        held = self._held_bytes()
        if held + size > self._budget_bytes:
            raise StorageError(
                f"{size} bytes do not fit: {held} of {self._budget_bytes} bytes of {self.directory} are in use or just "
                "fetched; raise swarm.store_bytes"
            )

    def _rescan(self, max_age_seconds: float) -> None:
        now_seconds = self._wall_clock()
        if self._scanned_at is not None and 0 <= now_seconds - self._scanned_at < max_age_seconds:
            return
        self._scanned_at = now_seconds
        self._blobs = dict(_blobs_in(self.directory))
        self._whole_bytes = sum(stored.size for stored in self._blobs.values())
        self._fetched &= self._blobs.keys()
        self._partials.rescan(now_seconds)

    @contextmanager
    def _storing(self, target: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = "check its owner and permissions"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                remedy = "free space on this disk, or lower swarm.store_bytes"
                self._drop_partials(self._partials.held_bytes)  # what nobody waits for
            raise StorageError(f"cannot store {target}: {error.strerror or error}; {remedy}") from error


def _blobs_in(directory: Path) -> Iterator[tuple[bytes, StoredBlob]]:
    for entry in files_in(directory):
        with suppress(FileNotFoundError, ValueError):
            blob = bytes.fromhex(entry.name)
            if len(blob) == HASH_BYTES:
                status = entry.stat()
                yield blob, StoredBlob(status.st_size, status.st_mtime)
