"""A blob that is being fetched: its verified chunks, and a record of them, so that an interrupted fetch can resume.

There are two files: ``<id>.part`` is the content with holes; ``<id>.record`` is u64 size ‖ 32 bytes per chunk hash ‖
one byte per chunk, 1 once the chunk is in place. The record is a hint: on resuming, the hashes are verified against the
id, and every chunk that is marked against its hash, so that neither a crash nor another process can add a wrong byte.
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
        self._part, self._record = _paths(directory, blob)
        self._content = os.open(self._part, os.O_RDWR | os.O_CREAT, 0o600)
        self._flags = os.open(self._record, os.O_RDWR)

    @classmethod
    def create(cls, directory: Path, blob: bytes, size: int, chunk_hashes: Sequence[bytes]) -> PartialBlob:
        """Starts a fetch. The caller has verified ``chunk_hashes`` against ``blob``. Raises ``OSError``."""
        directory.mkdir(parents=True, exist_ok=True)
        part, record = _paths(directory, blob)
        have = bytearray(chunk_count(size))
        try:
            record.write_bytes(_SIZE.pack(size) + b"".join(chunk_hashes) + have)
            with part.open("wb") as content:
                content.truncate(size)
        except OSError:
            part.unlink(missing_ok=True)
            record.unlink(missing_ok=True)
            raise
        return cls(directory, blob, size, chunk_hashes, have)

    @classmethod
    def resume(cls, directory: Path, blob: bytes, size: int) -> PartialBlob | None:
        """Returns an interrupted fetch with the chunks that verify; None, and deletes its files, if it is unusable."""
        part, record = _paths(directory, blob)
        chunks = chunk_count(size)
        try:
            raw = record.read_bytes()
            if len(raw) != _SIZE.size + chunks * (HASH_BYTES + 1) or _SIZE.unpack_from(raw) != (size,):
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
        partial._drop_unverified()
        return partial

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
        for descriptor in (self._content, self._flags):
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)
        self._content = self._flags = -1


def _paths(directory: Path, blob: bytes) -> tuple[Path, Path]:
    return directory / f"{blob.hex()}.part", directory / f"{blob.hex()}.record"
