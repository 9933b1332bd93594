"""What tests of the content store share."""

from __future__ import annotations

from pathlib import Path
from random import Random

from protocol.blob_id import blob_id, size_and_chunk_hashes
from protocol.limits import CHUNK_BYTES
from swarm.blobs.store import ContentStore


class Clock:
    def __init__(self) -> None:
        self.now_seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.now_seconds


def content(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def on_disk_bytes(folder: Path) -> int:
    """Returns what all files below a folder take on the disk."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "packed.db-open"]
    return sum(path.stat().st_blocks * 512 for path in files)


def put_all(store: ContentStore, wholes: list[bytes], clock: Clock) -> list[bytes]:
    blobs = []
    for whole in wholes:
        blobs.append(store.put(whole))
        clock.now_seconds += 1.0
    return blobs


def start(store: ContentStore, whole: bytes, chunks: int) -> None:
    """Fetches the first chunks of a blob, and is interrupted."""
    partial = store.resume(blob_id(whole), *size_and_chunk_hashes(whole))
    assert partial is not None
    for index in range(chunks):
        assert store.write_chunk(partial, index, whole[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
    partial.close()
