"""How blobs of another process of this node reach the content store, and how the files of an older version do.

The learner writes a file into ``incoming/``; the store's owner adopts it when the blob is asked for or announced, or
after a while. So one process alone opens the store's database, and a learner that is stopped holds up nothing.

In an older version every blob was a file in the store's directory itself. ``set_aside_flat_folder`` renames such a
directory, and ``clear_flat_folder`` empties it: what may still be wanted moves to ``incoming/``.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protocol.blob_id import blob_id
from protocol.errors import StorageError
from swarm.blobs.files import blob_named, files_in
from swarm.blobs.packed import PACKED_BYTES

FOLDER = "incoming"
FILES_FOLDER = "files"  # of ``swarm.blobs.files``
PARTIAL_FOLDER = "partial"  # of unfinished fetches
FLAT_SUFFIX = ".flat"  # of a directory that an older version made
UNFINISHED_SECONDS = 24 * 3600.0  # after which a file that a process began to hand over is deleted


def storage_error(target: Path, error: OSError) -> StorageError:
    """Returns the error of a write that failed, with a remedy."""
    if is_disk_full(error):
        remedy = "free space on this disk, or lower swarm.store_bytes"
    elif error.errno == errno.EBUSY:
        remedy = "end the other process that uses this data directory"
    else:
        remedy = "check its owner and permissions"
    return StorageError(f"cannot store {target}: {error.strerror or error}; {remedy}")


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class BlobInbox:
    """Hands blobs over to the content store in ``directory``, which another process owns."""

    def __init__(self, directory: Path, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._wall_clock = wall_clock

    def put(self, content: bytes | Sequence[bytes | memoryview]) -> tuple[bytes, int]:
        """Hands over ``content``, whole or in parts; returns its id and bytes. Raises ``StorageError``.

        A large blob that the store has already is only marked as used.
        """
        parts = [content] if isinstance(content, bytes) else content
        blob, size = blob_id(content), sum(len(part) for part in parts)
        now_seconds = self._wall_clock()
        try:
            os.utime(self._directory / FILES_FOLDER / blob.hex(), (now_seconds, now_seconds))
        except OSError:
            target = self._directory / FOLDER / blob.hex()
            try:
                write_whole(target, parts, target.parent)
            except OSError as error:
                raise storage_error(target, error) from error
        return blob, size


@dataclass(frozen=True, slots=True)
class Taken:
    """A blob that was handed over, verified if it is small."""

    path: Path
    source: bytes | None  # the content of a small one
    used_at_seconds: float


class HandedOver:
    """The owner's end: what lies in ``incoming/`` of a store's directory, or in its folder of an older version."""

    def __init__(self, directory: Path) -> None:
        set_aside_flat_folder(directory)
        self._folders = (directory / FOLDER, flat_folder(directory))

    def take(self, blob: bytes, now_seconds: float) -> Taken | None:
        """Returns the file of a blob, to be moved or deleted by the caller; None if there is none."""
        for folder in self._folders:
            path = folder / blob.hex()
            try:
                status = path.stat()
                content = path.read_bytes() if status.st_size <= PACKED_BYTES else None
            except OSError:
                continue
            if content is None or blob_id(content) == blob:
                return Taken(path, content, min(status.st_mtime, now_seconds))
            with suppress(OSError):
                path.unlink()
        return None

    def waiting(self, before_seconds: float, limit: int) -> list[bytes]:
        """Returns at most ``limit`` blobs that were handed over before then. Deletes what was left unfinished."""
        found: list[bytes] = []
        for entry in files_in(self._folders[0]):
            with suppress(OSError):
                age_seconds = before_seconds - entry.stat().st_mtime
                blob = blob_named(entry.name)
                if blob is not None and age_seconds >= 0 and len(found) < limit:
                    found.append(blob)
                elif blob is None and age_seconds >= UNFINISHED_SECONDS:
                    Path(entry.path).unlink()
        return found


def write_whole(target: Path, parts: Sequence[bytes | memoryview], unfinished: Path) -> None:
    """Writes a file that appears whole, by a rename from the folder ``unfinished``, or not at all, for every
    process that reads it. It is not synced: after a loss of power it may be empty. Raises ``OSError``."""
    temporary = unfinished / f"{target.name}.{os.getpid()}-{os.urandom(4).hex()}"
    unfinished.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            file.writelines(parts)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def flat_folder(directory: Path) -> Path:
    """Returns where ``set_aside_flat_folder`` puts what an older version made."""
    return directory.with_name(f"{directory.name}{FLAT_SUFFIX}")


def set_aside_flat_folder(directory: Path) -> None:
    """Renames ``directory`` if blobs lie in it directly, and creates it again. Its unfinished fetches stay where they
    were. Takes the same time for any number of blobs."""
    aside = flat_folder(directory)
    if aside.exists() or not _has_flat_blobs(directory):
        return
    with suppress(OSError):  # tried again with the next start
        directory.rename(aside)
        directory.mkdir()
        for kept in (PARTIAL_FOLDER, FOLDER, FILES_FOLDER):
            with suppress(FileNotFoundError):
                (aside / kept).rename(directory / kept)


def clear_flat_folder(directory: Path, *, before_seconds: float) -> None:
    """Deletes small blobs last used before then from the folder that was set aside, and moves the others to
    ``incoming/``; then the folder is gone. May run in a thread; what cannot be deleted stays."""
    aside = flat_folder(directory)
    incoming = directory / FOLDER
    with suppress(OSError):
        incoming.mkdir(parents=True, exist_ok=True)
        with os.scandir(aside) as entries:
            for entry in entries:
                with suppress(OSError):
                    _clear(entry, incoming, before_seconds)
        aside.rmdir()


def _clear(entry: os.DirEntry[str], incoming: Path, before_seconds: float) -> None:
    if not entry.is_file(follow_symlinks=False):
        return
    status = entry.stat(follow_symlinks=False)
    is_wanted = status.st_size > PACKED_BYTES or status.st_mtime >= before_seconds
    if blob_named(entry.name) is not None and is_wanted:
        Path(entry.path).rename(incoming / entry.name)
    else:
        Path(entry.path).unlink()


def _has_flat_blobs(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(blob_named(entry.name) is not None for entry in entries)
    except OSError:
        return False
