"""The small blobs of a content store, packed into one SQLite database that only the store's owner opens.

Why a database and not a file for each blob: a file system gives every file a block of 4 KiB and an inode, twenty times
what a rollout takes. Why SQLite and not segment files of our own: it reuses the room of deleted blobs, is recovered by
its own journal after ``kill -9``, and is opened without reading what is in it, where segments need an index in memory.
LMDB writes as fast, takes twice the room for blobs of this size, and would be one dependency more.

Guarantees:

- A blob is there whole or not at all, whenever this process or another one is killed. ``get`` verifies the content
  against its id; content that does not verify is dropped.
- A database that is damaged, or of another version, is deleted and created again: all blobs can be fetched again. So is
  one that was open when the machine went down, since nothing is synced to the disk before ``close``: the file beside it
  that ``close`` deletes names the boot of the system. Where the system names none, a killed process counts as that.
- A call takes some ten microseconds, and memory stays at a few MiB for any number.
- Times of use are gathered in memory and written by ``flush``; a crash loses those of the last moments.
- Blobs can be deleted on a full disk: a file keeps room for that.
- Calls that change the database raise ``OSError``; calls that only read find nothing where it cannot be read.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from protocol.blob_id import blob_id
from protocol.limits import CHUNK_BYTES
from swarm.blobs.disk_bytes import disk_bytes_of
from swarm.blobs.evictions import EvictableBlob

PACKED_BYTES = CHUNK_BYTES  # the longest blob that is packed: one chunk, which is verified whole and never in parts
PAGE_BYTES = 4096
ROW_BYTES = 120  # of a blob beside its content: id, times, and its entries in two indices
CACHE_BYTES = 4 << 20
LOG_PAGES = 64  # of the write-ahead log, before they are copied into the database
LOG_BYTES = 512 << 10  # of the log's file, which one long transaction may exceed for a while
TOUCHES = 4096  # gathered before they are written
DEAD_SHARE = 1 / 4  # of the database may be dead space, which new blobs fill
DEAD_BYTES = 1 << 20  # may be dead space in any case
SPARE_BYTES = 512 << 10  # of a file beside the database, which is deleted where deleting a blob needs room
REMOVED_AT_ONCE = 20  # blobs, on a full disk
OPEN_SECONDS = 2.0  # for a process that is ending to close the database
VERSION = 1
BOOT = Path("/proc/sys/kernel/random/boot_id")

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
}
_SETTINGS = (
    "PRAGMA locking_mode = EXCLUSIVE",  # no shared memory, which network file systems lack; one lock for all calls
    f"PRAGMA page_size = {PAGE_BYTES}",
    "PRAGMA auto_vacuum = INCREMENTAL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = OFF",
    f"PRAGMA wal_autocheckpoint = {LOG_PAGES}",
    f"PRAGMA journal_size_limit = {LOG_BYTES}",
    f"PRAGMA cache_size = {-CACHE_BYTES // 1024}",
)
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS blobs (id BLOB NOT NULL UNIQUE, fetched INTEGER NOT NULL, used_at REAL NOT NULL, "
    "size INTEGER NOT NULL, content BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS by_use ON blobs (fetched, used_at, size)",
    f"PRAGMA user_version = {VERSION}",
)

T = TypeVar("T")
log = logging.getLogger(__name__)


def boot_of_system() -> str:
    """Returns a text that stays the same until the system starts again; empty where the system has none."""
    try:
        return BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class PackedBlobs:
    """The database at ``path``, opened with the first call that needs it. One object at a time may use it."""

    def __init__(self, path: Path, *, boot: Callable[[], str] = boot_of_system) -> None:
        self._path = path
        self._boot = boot
        self._open: sqlite3.Connection | None = None
        self._touched: dict[bytes, float] = {}
        self._count = 0
        self._fetched_bytes = 0  # of contents

    def __len__(self) -> int:
        self._read(lambda database: None, None)
        return self._count

    @property
    def fetched_bytes(self) -> int:
        """Bytes of those that came from peers."""
        self._read(lambda database: None, None)
        return self._fetched_bytes

    @property
    def disk_bytes(self) -> int:
        """What the database takes on the disk, with dead space, its log and its spare room."""
        return disk_bytes_of(self._path) + disk_bytes_of(self._log) + disk_bytes_of(self._beside("-spare"))

    @property
    def dead_bytes(self) -> int:
        """The part of the database that is free for further blobs."""
        return self._read(lambda database: _number(database, "PRAGMA freelist_count"), 0) * PAGE_BYTES

    def growth_bytes(self, size: int) -> int:
        """By how much a blob of this size makes the database and its log longer, at most."""
        needed_bytes = -(-(size + ROW_BYTES) // PAGE_BYTES) * PAGE_BYTES
        log_bytes = LOG_PAGES * PAGE_BYTES + 2 * needed_bytes
        length_bytes = self._read(lambda database: _number(database, "PRAGMA page_count"), 0) * PAGE_BYTES
        growth_bytes = max(0, log_bytes - disk_bytes_of(self._log))
        growth_bytes += max(0, length_bytes - disk_bytes_of(self._path))  # what is in the log alone
        growth_bytes += max(0, SPARE_BYTES - disk_bytes_of(self._beside("-spare")))
        return growth_bytes + (0 if needed_bytes <= self.dead_bytes else needed_bytes)

    def has(self, blob: bytes) -> bool:
        return self.size(blob) is not None

    def size(self, blob: bytes) -> int | None:
        """Returns the bytes of a blob, None if it is not here."""
        found = self._read(lambda d: d.execute("SELECT size FROM blobs WHERE id = ?", (blob,)).fetchone(), None)
        return None if found is None else int(found[0])

    def get(self, blob: bytes) -> bytes | None:
        """Returns the content of a blob, verified against its id; None if it is not here."""
        found = self._read(lambda d: d.execute("SELECT content FROM blobs WHERE id = ?", (blob,)).fetchone(), None)
        if found is None:
            return None
        content = bytes(found[0])
        if blob_id(content) == blob:
            return content
        log.warning("blob %s is damaged on the disk and was dropped", blob.hex())
        with suppress(OSError):
            self.remove([blob])
        return None

    def put(self, blob: bytes, content: bytes, *, fetched: bool, used_at_seconds: float) -> None:
        """Stores content that the caller has verified. What is here already stays as it is."""
        row = (blob, fetched, used_at_seconds, len(content), content)
        insert = "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?)"
        if self._write(lambda database: database.execute(insert, row).rowcount):
            self._count += 1
            self._fetched_bytes += len(content) if fetched else 0

    def touch(self, blob: bytes, now_seconds: float) -> bool:
        """Marks the blob as used now; returns whether it is here."""
        if not self.has(blob):
            return False
        self._touched[blob] = now_seconds
        if len(self._touched) >= TOUCHES:
            with suppress(OSError):  # they are written later
                self.flush(now_seconds)
        return True

    def flush(self, now_seconds: float) -> None:
        """Writes the times of use. Times after now, from before a clock was set back, become now."""
        touched = [(min(at, now_seconds), blob) for blob, at in self._touched.items()]

        def write(database: sqlite3.Connection) -> None:
            database.executemany("UPDATE blobs SET used_at = ? WHERE id = ?", touched)
            for fetched in (0, 1):
                late = (now_seconds, fetched, now_seconds)
                database.execute("UPDATE blobs SET used_at = ? WHERE fetched = ? AND used_at > ?", late)

        if self._path.exists():
            self._write(write)
        self._touched.clear()

    def oldest(self, *, fetched: bool, limit: int) -> list[EvictableBlob]:
        """Returns blobs as ``flush`` left them, the least recently used first."""
        query = "SELECT id, size, used_at FROM blobs WHERE fetched = ? ORDER BY used_at LIMIT ?"
        none: list[tuple[bytes, int, float]] = []
        rows = self._read(lambda database: database.execute(query, (fetched, limit)).fetchall(), none)
        return [EvictableBlob(blob, size + ROW_BYTES, used_at_seconds) for blob, size, used_at_seconds in rows]

    def remove(self, blobs: Iterable[bytes]) -> None:
        """Deletes them; those that are not here are passed over. Their room is dead until ``compact``.

        On a full disk it takes the room that is kept for this; where that is not enough, all blobs are deleted.
        """
        wanted = list(blobs)
        try:
            self._remove(wanted)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._remove_on_a_full_disk(wanted)
        for blob in wanted:
            self._touched.pop(blob, None)

    def _remove(self, wanted: Sequence[bytes]) -> None:
        delete = "DELETE FROM blobs WHERE id = ? RETURNING fetched, size"

        def write(database: sqlite3.Connection) -> list[tuple[int, int]]:
            return [row for blob in wanted for row in database.execute(delete, (blob,)).fetchall()]

        for fetched, size in self._write(write):
            self._count -= 1
            self._fetched_bytes -= size if fetched else 0

    def _remove_on_a_full_disk(self, wanted: Sequence[bytes]) -> None:
        self._beside("-spare").unlink(missing_ok=True)
        try:
            for first in range(0, len(wanted), REMOVED_AT_ONCE):
                self._empty_log()
                self._remove(wanted[first : first + REMOVED_AT_ONCE])
            self._empty_log()
        except OSError as error:
            log.warning(
                "%s is replaced by an empty one, because the disk has no room to delete from it: %s", self._path, error
            )
            self._delete()

    def _empty_log(self) -> None:
        self._with_database(lambda database: database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def _keep_spare(self) -> None:
        """Takes the room that deleting needs on a full disk, where there is room now."""
        spare = self._beside("-spare")
        if not spare.exists():
            try:
                spare.write_bytes(os.urandom(SPARE_BYTES))  # not zeros, which take no room on some file systems
            except OSError:
                spare.unlink(missing_ok=True)

    def compact(self, *, wanted_bytes: int = 0) -> None:
        """Gives dead space back to the file system: what is beyond its share, and at least ``wanted_bytes`` of it."""
        dead_bytes = self.dead_bytes
        kept_bytes = max(DEAD_BYTES, int(DEAD_SHARE * disk_bytes_of(self._path)))
        surplus_bytes = min(dead_bytes, max(wanted_bytes, dead_bytes - kept_bytes))
        if surplus_bytes > 0:
            pages = -(-surplus_bytes // PAGE_BYTES)
            vacuum = f"PRAGMA incremental_vacuum({pages})"  # steps once a page, which ``execute`` would not
            self._with_database(lambda database: database.executescript(vacuum))
        if surplus_bytes > 0 or (wanted_bytes > 0 and disk_bytes_of(self._log) > 0):
            self._empty_log()
        if self._open is not None:
            self._keep_spare()

    def close(self) -> None:
        """Closes the database; the next call opens it again."""
        database, self._open = self._open, None
        if database is None:
            return
        try:
            database.execute("PRAGMA synchronous = FULL")  # of the copy from the log, with which closing ends
            database.close()
            self._beside("-open").unlink(missing_ok=True)
        except (sqlite3.Error, OSError) as error:
            log.warning("%s was not closed: %s", self._path, error)

    @property
    def _log(self) -> Path:
        return self._beside("-wal")

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(f"{self._path.name}{suffix}")

    def _read(self, ask: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        if self._open is None and not self._path.exists():
            return otherwise
        try:
            return self._with_database(ask)
        except OSError as error:
            log.warning("%s cannot be read: %s", self._path, error)
            return otherwise

    def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Applies a change in one transaction. Raises ``OSError``."""

        def changed(database: sqlite3.Connection) -> T:
            database.execute("BEGIN IMMEDIATE")
            try:
                result = change(database)
                database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite has rolled back by itself where it had to
                    database.execute("ROLLBACK")
                raise
            return result

        return self._with_database(changed)

    def _with_database(self, use: Callable[[sqlite3.Connection], T]) -> T:
        """Raises ``OSError``. A damaged database is created again, once."""
        for attempt in (1, 2):
            try:
                return use(self._opened())
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code not in _DAMAGED or attempt == 2:
                    raise OSError(_ERRNO.get(code, errno.EIO), str(error), str(self._path)) from error
                log.warning(
                    "%s is damaged (%s) and is replaced by an empty one: small blobs are fetched again",
                    self._path,
                    error,
                )
                self._delete()
        raise AssertionError("the second attempt returns or raises")

    def _opened(self) -> sqlite3.Connection:
        if self._open is not None:
            return self._open
        self._path.parent.mkdir(parents=True, exist_ok=True)
        database = self._connected()
        try:
            if self._went_down_open() or _number(database, "PRAGMA user_version") not in (0, VERSION):
                log.warning(
                    "%s is of another version, or was open when the machine went down: it is replaced by an empty one",
                    self._path,
                )
                database.close()
                self._delete()
                database = self._connected()
            for statement in _SCHEMA:
                database.execute(statement)
            sums = database.execute("SELECT fetched, count(*), sum(size) FROM blobs GROUP BY fetched").fetchall()
        except BaseException:
            database.close()
            raise
        with suppress(OSError):  # on a full disk a power failure may go unnoticed, and ``get`` verifies
            self._beside("-open").write_text(self._boot(), encoding="ascii")
        self._count = sum(count for _, count, _ in sums)
        self._fetched_bytes = sum(size for fetched, _, size in sums if fetched)
        self._open = database
        self._keep_spare()
        return database

    def _connected(self) -> sqlite3.Connection:
        database = sqlite3.connect(
            self._path, timeout=OPEN_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        try:
            for setting in _SETTINGS:
                database.execute(setting).fetchall()
        except BaseException:
            database.close()
            raise
        return database

    def _went_down_open(self) -> bool:
        try:
            boot = self._beside("-open").read_text(encoding="ascii")
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            return True
        return not boot or boot != self._boot()

    def _delete(self) -> None:
        if self._open is not None:
            with suppress(sqlite3.Error):
                self._open.close()
        self._open = None
        self._touched.clear()
        self._count = self._fetched_bytes = 0
        for suffix in ("", "-wal", "-shm", "-journal", "-open", "-spare"):
            self._beside(suffix).unlink(missing_ok=True)


def _number(database: sqlite3.Connection, question: str) -> int:
    return int(database.execute(question).fetchone()[0])
