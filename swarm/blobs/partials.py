"""The unfinished fetches of a content store: which of them run, what the others hold on the disk, and for how long.

Guarantees: a fetch holds bytes only for chunks that arrived and verified, whatever size was announced; a fetch without
a chunk has no file. Interrupted fetches are dropped after ``PARTIAL_AGE_SECONDS``, beyond their share of the store, and
before any whole blob.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from protocol.blob_id import HASH_BYTES
from swarm.blobs.evictions import InterruptedFetch, choose_dropped
from swarm.blobs.partial_blob import CONTENT_SUFFIX, RECORD_SUFFIX, PartialBlob

PARTIAL_AGE_SECONDS = 24 * 3600.0  # an interrupted fetch that was not resumed for so long is dropped
BLOCK_BYTES = 512  # the unit of ``st_blocks``


class Partials:
    """The files in ``directory``: two of each unfinished fetch, and blobs that a process is about to add."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: dict[bytes, PartialBlob] = {}
        self._interrupted: dict[bytes, InterruptedFetch] = {}
        self._other_bytes = 0  # records, and files of processes that put a blob

    @property
    def held_bytes(self) -> int:
        """Bytes on the disk, as far as this process knows."""
        running = sum(partial.here_bytes for partial in self._running.values())
        return running + sum(fetch.held_bytes for fetch in self._interrupted.values()) + self._other_bytes

    def resume(self, blob: bytes, size: int) -> PartialBlob | None:
        """Returns an interrupted fetch with its chunks that verify, or None."""
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

    def rescan(self, now_seconds: float) -> None:
        """Reads the directory again: what another process added counts, and what is too old is dropped."""
        self._settle(now_seconds)
        known, self._interrupted = self._interrupted, {}
        self._other_bytes = 0
        for entry in files_in(self.directory):
            with suppress(FileNotFoundError):
                self._count(entry, known, now_seconds)

    def _count(self, entry: os.DirEntry[str], known: dict[bytes, InterruptedFetch], now_seconds: float) -> None:
        status = entry.stat()
        blob = _blob_of(entry.name)
        if blob in self._running:
            self._other_bytes += 0 if entry.name.endswith(CONTENT_SUFFIX) else status.st_size
        elif now_seconds - status.st_mtime > PARTIAL_AGE_SECONDS:
            Path(entry.path).unlink(missing_ok=True)
        elif blob is None or entry.name.endswith(RECORD_SUFFIX):
            self._other_bytes += status.st_size
        else:
            held_bytes = min(status.st_size, status.st_blocks * BLOCK_BYTES)  # a file with holes has fewer blocks
            fetch = known.get(blob) or InterruptedFetch(status.st_size, held_bytes, status.st_mtime)
            if fetch.held_bytes:
                self._interrupted[blob] = fetch
            else:
                self._unlink(blob)

    def _settle(self, now_seconds: float) -> None:
        """Counts fetches that were closed as interrupted ones."""
        for blob in [blob for blob, partial in self._running.items() if partial.is_closed]:
            partial = self._running.pop(blob)
            if partial.here_bytes:
                self._interrupted[blob] = InterruptedFetch(partial.size, partial.here_bytes, now_seconds)
            else:
                self._unlink(blob)

    def _unlink(self, blob: bytes) -> None:
        for suffix in (CONTENT_SUFFIX, RECORD_SUFFIX):
            (self.directory / f"{blob.hex()}{suffix}").unlink(missing_ok=True)


def files_in(directory: Path) -> list[os.DirEntry[str]]:
    """The files of a directory, links not followed; none if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            return [e for e in entries if e.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _blob_of(name: str) -> bytes | None:
    """The blob to which a file of an unfinished fetch belongs; None for any other file."""
    if not name.endswith((CONTENT_SUFFIX, RECORD_SUFFIX)):
        return None
    with suppress(ValueError):
        blob = bytes.fromhex(name.partition(".")[0])
        return blob if len(blob) == HASH_BYTES else None
    return None
