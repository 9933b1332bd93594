"""The unfinished fetches of a content store: which of them run, what the others hold on the disk, and for how long.

Guarantees: a fetch holds bytes only for chunks that arrived and verified, whatever size was announced; a fetch without
a chunk has no file. Interrupted fetches are dropped after ``PARTIAL_AGE_SECONDS``, beyond their share of the store, and
before any whole blob. The directory is read once; totals are kept from then on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from protocol.blob_id import HASH_BYTES, chunk_count
from swarm.blobs.disk_bytes import BLOCK_BYTES
from swarm.blobs.evictions import InterruptedFetch, choose_dropped
from swarm.blobs.files import files_in
from swarm.blobs.partial_blob import CONTENT_SUFFIX, RECORD_SUFFIX, PartialBlob

PARTIAL_AGE_SECONDS = 24 * 3600.0  # an interrupted fetch that was not resumed for so long is dropped
FILE_BLOCK_BYTES = 4096  # in which file systems give room to a record


class Partials:
    """The files in ``directory``: two of each unfinished fetch, and a blob while it is written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: dict[bytes, PartialBlob] = {}
        self._interrupted: dict[bytes, InterruptedFetch] = {}
        self._is_read = False

    @property
    def held_bytes(self) -> int:
        """Bytes that unfinished fetches take on the disk."""
        self._read_once()
        running = sum(_held(partial) for partial in self._running.values())
        return running + sum(fetch.held_bytes for fetch in self._interrupted.values())

    def resume(self, blob: bytes, size: int) -> PartialBlob | None:
        """Returns an interrupted fetch with its chunks that verify, or None."""
        self._read_once()
        self._interrupted.pop(blob, None)
        partial = PartialBlob.resume(self.directory, blob, size)
        if partial is not None:
            self._running[blob] = partial
        return partial

    def start(self, blob: bytes, size: int, chunk_hashes: Sequence[bytes]) -> PartialBlob:
        """Starts a fetch. The caller has verified ``chunk_hashes`` against ``blob``."""
        self._running[blob] = PartialBlob.create(self.directory, blob, size, chunk_hashes)
        return self._running[blob]

    def finished(self, partial: PartialBlob) -> None:
        self._running.pop(partial.blob, None)

    def drop(self, *, budget_bytes: int, excess_bytes: int, now_seconds: float) -> int:
        """Drops what is beyond its share of the budget, and enough to free ``excess_bytes`` if that can be; returns
        the bytes freed."""
        self._settle(now_seconds)
        freed_bytes = 0
        for blob in choose_dropped(self._interrupted, budget_bytes=budget_bytes, excess_bytes=excess_bytes):
            freed_bytes += self._interrupted.pop(blob).held_bytes
            self._unlink(blob)
        return freed_bytes

    def drop_aged(self, now_seconds: float) -> None:
        """Drops the fetches that nobody resumed for ``PARTIAL_AGE_SECONDS``."""
        self._read_once()
        self._settle(now_seconds)
        aged = [b for b, f in self._interrupted.items() if now_seconds - f.used_at_seconds > PARTIAL_AGE_SECONDS]
        for blob in aged:
            del self._interrupted[blob]
            self._unlink(blob)

    def _read_once(self) -> None:
        """Counts the fetches that an earlier process left, and deletes what else it left."""
        if self._is_read:
            return
        self._is_read = True
        for entry in files_in(self.directory):
            with suppress(FileNotFoundError):
                self._count(entry)

    def _count(self, entry: os.DirEntry[str]) -> None:
        status = entry.stat()
        blob = _blob_of(entry.name)
        other_suffix = CONTENT_SUFFIX if entry.name.endswith(RECORD_SUFFIX) else RECORD_SUFFIX
        if blob is None or not (self.directory / f"{blob.hex()}{other_suffix}").exists():
            Path(entry.path).unlink()
        elif blob not in self._running and entry.name.endswith(CONTENT_SUFFIX):  # its record is counted with it
            held_bytes = min(status.st_size, status.st_blocks * BLOCK_BYTES)  # a file with holes has fewer blocks
            if held_bytes:
                held_bytes += _record_bytes(status.st_size)
                self._interrupted[blob] = InterruptedFetch(status.st_size, held_bytes, status.st_mtime)
            else:
                self._unlink(blob)

    def _settle(self, now_seconds: float) -> None:
        """Counts fetches that were closed as interrupted ones."""
        for blob in [blob for blob, partial in self._running.items() if partial.is_closed]:
            partial = self._running.pop(blob)
            if partial.here_bytes:
                self._interrupted[blob] = InterruptedFetch(partial.size, _held(partial), now_seconds)
            else:
                self._unlink(blob)

    def _unlink(self, blob: bytes) -> None:
        for suffix in (CONTENT_SUFFIX, RECORD_SUFFIX):
            (self.directory / f"{blob.hex()}{suffix}").unlink(missing_ok=True)


def _held(partial: PartialBlob) -> int:
    """What a fetch takes on the disk; without a chunk it has no file."""
    return partial.here_bytes + _record_bytes(partial.size) if partial.here_bytes else 0


def _record_bytes(size: int) -> int:
    return -(-(8 + chunk_count(size) * (HASH_BYTES + 1)) // FILE_BLOCK_BYTES) * FILE_BLOCK_BYTES


def _blob_of(name: str) -> bytes | None:
    """The blob to which a file of an unfinished fetch belongs; None for any other file."""
    if not name.endswith((CONTENT_SUFFIX, RECORD_SUFFIX)):
        return None
    with suppress(ValueError):
        blob = bytes.fromhex(name.partition(".")[0])
        return blob if len(blob) == HASH_BYTES else None
    return None
