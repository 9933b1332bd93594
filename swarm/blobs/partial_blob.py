"""A blob that is being fetched: its verified chunks, and a record of them, so that an interrupted fetch can resume.

There are two files, made with the first verified chunk: hashes alone cost their sender nothing, and hold no disk here.
``<id>.part`` is the content with holes; ``<id>.record`` is u64 size ‖ 32 bytes per chunk hash ‖ one byte per chunk, 1
once the chunk is in place. The record is a hint: on resuming, the hashes are verified against the id, and every chunk
that is marked against its hash, so that neither a crash nor another process can add a wrong byte.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from protocol.blob_id import HASH_BYTES, chunk_count, id_of_chunk_hashes
from protocol.errors import IntegrityError, ProtocolError
from protocol.limits import CHUNK_BYTES

CONTENT_SUFFIX, RECORD_SUFFIX = ".part", ".record"
_SIZE = struct.Struct(">Q")


def chunk_size(size: int, index: int) -> int:
    """Bytes of the chunk at ``index`` of a blob of ``size`` bytes."""
    return min(CHUNK_BYTES, size - index * CHUNK_BYTES)


class PartialBlob:
    """Chunks of one blob of ``size`` bytes. One fetch at a time owns it; ``close`` keeps the chunks."""

    def __init__(self, directory: Path, blob: bytes, size: int, chunk_hashes: Sequence[bytes], have: bytearray) -> None:
        self.blob = blob
        self.size = size
        self.chunk_hashes = chunk_hashes
        self._have = have  # one byte per chunk
        self.is_closed = False
        self._directory = directory
        self._part, self._record = _paths(directory, blob)
        self._content = self._flags = -1  # until there is a chunk

    @classmethod
    def create(cls, directory: Path, blob: bytes, size: int, chunk_hashes: Sequence[bytes]) -> PartialBlob:
        """Starts a fetch, in memory. The caller has verified ``chunk_hashes`` against ``blob``."""
        return cls(directory, blob, size, chunk_hashes, bytearray(chunk_count(size)))

    @classmethod
    def resume(cls, directory: Path, blob: bytes, size: int) -> PartialBlob | None:
        """Returns an interrupted fetch with the chunks that verify; None, and deletes its files, if it is unusable.

        None as well for another ``size`` than the record's; the files stay, for the id shows which of them is true.
        """
        part, record = _paths(directory, blob)
        chunks = chunk_count(size)
        try:
            raw = record.read_bytes()
            if len(raw) >= _SIZE.size and _SIZE.unpack_from(raw) != (size,):
                return None
            if len(raw) != _SIZE.size + chunks * (HASH_BYTES + 1):
                raise IntegrityError("the record belongs to another blob")
            hashed = raw[_SIZE.size : _SIZE.size + chunks * HASH_BYTES]
            chunk_hashes = [hashed[at : at + HASH_BYTES] for at in range(0, len(hashed), HASH_BYTES)]
            if id_of_chunk_hashes(size, chunk_hashes) != blob:
                raise IntegrityError("the record belongs to another blob")
            if part.stat().st_size != size:
                raise IntegrityError("the content has another size")
        except (OSError, ProtocolError):
            part.unlink(missing_ok=True)
            record.unlink(missing_ok=True)
            return None
        partial = cls(directory, blob, size, chunk_hashes, bytearray(raw[len(raw) - chunks :]))
        partial._open()
        partial._drop_unverified()
        return partial

    def _make_files(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._record.write_bytes(_SIZE.pack(self.size) + b"".join(self.chunk_hashes) + self._have)
            with self._part.open("wb") as content:
                content.truncate(self.size)
            self._open()
        except OSError:
            self._part.unlink(missing_ok=True)
            self._record.unlink(missing_ok=True)
            raise

    def _open(self) -> None:
        self._content = os.open(self._part, os.O_RDWR)
        self._flags = os.open(self._record, os.O_RDWR)

    def _drop_unverified(self) -> None:
        for index, there in enumerate(self._have):
            if there:
                chunk = os.pread(self._content, chunk_size(self.size, index), index * CHUNK_BYTES)
                if not self.verifies(index, chunk):
                    self._mark(index, 0)

    def verifies(self, index: int, chunk: bytes | memoryview) -> bool:
        """Whether ``chunk`` is the blob's chunk at ``index``."""
        return hashlib.sha256(chunk).digest() == self.chunk_hashes[index]

    def write(self, index: int, chunk: bytes | memoryview) -> bool:
        """Verifies one chunk and writes it if it is the blob's; returns whether it was. Raises ``OSError``."""
        if len(chunk) != chunk_size(self.size, index) or not self.verifies(index, chunk):
            return False
        if self._content < 0:
            self._make_files()
        view = memoryview(chunk)
        offset = index * CHUNK_BYTES
        while view:
            written = os.pwrite(self._content, view, offset)
            view, offset = view[written:], offset + written
        self._mark(index, 1)
        return True

    def _mark(self, index: int, there: int) -> None:
        self._have[index] = there
        os.pwrite(self._flags, bytes([there]), _SIZE.size + len(self.chunk_hashes) * HASH_BYTES + index)

    def missing(self) -> list[int]:
        """Returns the indices of the chunks that are not here yet, in order."""
        return [index for index, there in enumerate(self._have) if not there]

    @property
    def here_bytes(self) -> int:
        """Bytes of the verified chunks."""
        last = len(self._have) - 1
        surplus = CHUNK_BYTES - chunk_size(self.size, last) if self._have[last] else 0
        return self._have.count(1) * CHUNK_BYTES - surplus

    @property
    def is_whole(self) -> bool:
        return 0 not in self._have

    def publish(self, target: Path) -> None:
        """Renames the whole blob to ``target`` and removes the record. Raises ``OSError``."""
        self.close()
        self._part.replace(target)
        self._record.unlink(missing_ok=True)

    def close(self) -> None:
        """Keeps the chunks for a later ``resume``. May be called twice."""
        self.is_closed = True
        for descriptor in (self._content, self._flags):
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)
        self._content = self._flags = -1


def _paths(directory: Path, blob: bytes) -> tuple[Path, Path]:
    return directory / f"{blob.hex()}{CONTENT_SUFFIX}", directory / f"{blob.hex()}{RECORD_SUFFIX}"
