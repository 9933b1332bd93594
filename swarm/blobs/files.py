"""The large blobs of a content store: each a file under its id, which can be mapped and handed over by path.

Guarantees: the directory is read once, and totals are kept from then on. A file that another program puts under a
blob's id, or deletes, is noticed when the blob is asked for. The modification time of a file is its last use by any
process, so that it outlives a restart.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from protocol.blob_id import HASH_BYTES
from swarm.blobs.disk_bytes import disk_bytes
from swarm.blobs.evictions import EvictableBlob


@dataclass(slots=True)
class StoredFile:
    size: int
    disk_bytes: int
    used_at_seconds: float
    fetched: bool  # from a peer, by this process


class BlobFiles:
    """The files in ``directory``; nothing else is to be in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[bytes, StoredFile] | None = None
        self._disk_bytes = self._fetched_bytes = 0

    def __len__(self) -> int:
        return len(self._files())

    @property
    def disk_bytes(self) -> int:
        """What they take on the disk."""
        self._files()
        return self._disk_bytes

    @property
    def fetched_bytes(self) -> int:
        """The same of those that came from peers."""
        self._files()
        return self._fetched_bytes

    def path(self, blob: bytes) -> Path:
        """Returns where ``blob`` lies if it is here."""
        return self.directory / blob.hex()

    def size(self, blob: bytes) -> int | None:
        """Returns the bytes of a blob, None if it is not here. Reads the disk."""
        try:
            status = self.path(blob).stat()
        except OSError:
            self.forget(blob)
            return None
        if blob not in self._files():
            self._add(blob, status, fetched=False)
        return status.st_size

    def added(self, blob: bytes, *, fetched: bool, used_at_seconds: float) -> None:
        """To be called once the whole file is in place. Raises ``OSError``."""
        os.utime(self.path(blob), (used_at_seconds, used_at_seconds))
        status = self.path(blob).stat()
        self.forget(blob)
        self._add(blob, status, fetched=fetched)

    def touch(self, blob: bytes, now_seconds: float) -> bool:
        """Marks the blob as used now; returns whether it is here."""
        if self.size(blob) is None:
            return False
        try:
            os.utime(self.path(blob), (now_seconds, now_seconds))
        except FileNotFoundError:
            self.forget(blob)
            return False
        except OSError:
            pass  # on a disk that takes no writes, the time is kept in memory
        self._files()[blob].used_at_seconds = now_seconds
        return True

    def oldest(self, now_seconds: float, *, fetched: bool) -> list[EvictableBlob]:
        """Returns the blobs, the least recently used by any process first. Reads the time of each file."""
        self._refresh(now_seconds)
        of_kind = [
            EvictableBlob(blob, file.disk_bytes, file.used_at_seconds)
            for blob, file in self._files().items()
            if file.fetched is fetched
        ]
        return sorted(of_kind, key=lambda each: each.used_at_seconds)

    def unused_since(self, before_seconds: float, now_seconds: float) -> list[tuple[bytes, int]]:
        """Returns (blob, bytes) of each that no process used since then. Reads the time of each file."""
        self._refresh(now_seconds)
        return [(b, file.size) for b, file in self._files().items() if file.used_at_seconds <= before_seconds]

    def _refresh(self, now_seconds: float) -> None:
        """Takes account of uses by other processes. Times after now, from before a clock was set back, become now."""
        for blob, file in list(self._files().items()):
            try:
                used_at_seconds = max(self.path(blob).stat().st_mtime, file.used_at_seconds)
            except OSError:
                self.forget(blob)
                continue
            file.used_at_seconds = used_at_seconds
            if used_at_seconds > now_seconds:
                self.touch(blob, now_seconds)

    def remove(self, blob: bytes) -> bool:
        """Returns whether there was one. Raises ``OSError`` if the file cannot be deleted."""
        is_here = self.size(blob) is not None
        if is_here:
            self.path(blob).unlink(missing_ok=True)
            self.forget(blob)
        return is_here

    def forget(self, blob: bytes) -> None:
        """Counts the blob no longer."""
        file = self._files().pop(blob, None)
        if file is not None:
            self._disk_bytes -= file.disk_bytes
            self._fetched_bytes -= file.disk_bytes if file.fetched else 0

    def _add(self, blob: bytes, status: os.stat_result, *, fetched: bool) -> None:
        file = StoredFile(status.st_size, disk_bytes(status), status.st_mtime, fetched)
        self._files()[blob] = file
        self._disk_bytes += file.disk_bytes
        self._fetched_bytes += file.disk_bytes if fetched else 0

    def _files(self) -> dict[bytes, StoredFile]:
        if self._known is None:
            self._known = {}
            for entry in files_in(self.directory):
                blob = blob_named(entry.name)
                if blob is not None:
                    self._add(blob, entry.stat(), fetched=False)
        return self._known


def files_in(directory: Path) -> list[os.DirEntry[str]]:
    """Returns the files of a directory, links not followed; none if it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return [e for e in entries if e.is_file(follow_symlinks=False)]
    except OSError:
        return []


def blob_named(name: str) -> bytes | None:
    """Returns the blob with this id in hex; None for any other name."""
    if len(name) != 2 * HASH_BYTES:
        return None
    try:
        return bytes.fromhex(name)
    except ValueError:
        return None
