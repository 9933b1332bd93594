"""The room of a content store: what it takes on the disk, what leaves it, and what expires.

``evictions`` decides; this module reads the candidates from where they lie, and deletes.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from protocol.errors import StorageError
from protocol.limits import GROUP_BLOB_BYTES
from swarm.blobs.disk_bytes import blocks_below, disk_bytes_below
from swarm.blobs.evictions import RESERVE_SHARE, EvictableBlob, choose_evictions
from swarm.blobs.files import BlobFiles
from swarm.blobs.incoming import PARTIAL_FOLDER, flat_folder
from swarm.blobs.packed import PackedBlobs
from swarm.blobs.partials import Partials

EXPIRED_AT_ONCE = 500  # blobs, some ten milliseconds
EVICTED_AT_ONCE = 4096  # packed blobs, before the room is measured again
EVICTION_ROUNDS = 8  # of ``EVICTED_AT_ONCE``, in one call

log = logging.getLogger(__name__)


def store_disk_bytes(directory: Path) -> int:
    """Returns what the store in ``directory`` takes on the disk, for others than its owner: all files are looked at,
    those that an older version left beside it too."""
    partial = directory / PARTIAL_FOLDER
    whole_bytes = disk_bytes_below(directory) - disk_bytes_below(partial)
    return whole_bytes + blocks_below(partial) + disk_bytes_below(flat_folder(directory))


class StoreRoom:
    """The room of the store in ``directory``. ``kept`` are the blobs that are pinned, and those being read."""

    def __init__(
        self,
        directory: Path,
        *,
        budget_bytes: int | None,
        grace_seconds: float,
        expire_seconds: float | None,
        wall_clock: Callable[[], float],
        kept: tuple[Container[bytes], Container[bytes]],
    ) -> None:
        self.packed = PackedBlobs(directory / "packed.db")
        self.files = BlobFiles(directory / "files")
        self.partials = Partials(directory / PARTIAL_FOLDER)
        self._directory = directory
        self._budget_bytes = budget_bytes
        self._grace_seconds = grace_seconds
        self._expire_seconds = expire_seconds
        self._wall_clock = wall_clock
        self._kept = kept

    def total_bytes(self) -> int:
        """Returns what blobs and the chunks of unfinished fetches take on the disk."""
        return self.packed.disk_bytes + self.files.disk_bytes + self.partials.held_bytes

    def can_hold(self, size: int) -> bool:
        """Whether a blob of this size fits an empty store."""
        return self._budget_bytes is None or size <= self._budget_bytes

    def raise_budget(self, budget_bytes: int) -> None:
        """Raises the budget to at least this. A store without a budget stays without."""
        if self._budget_bytes is not None:
            self._budget_bytes = max(self._budget_bytes, budget_bytes)

    @property
    def is_reserve_in_use(self) -> bool:
        """Whether so much is held that the next fetch would have to evict."""
        return self._budget_bytes is not None and self.total_bytes() > (1.0 - RESERVE_SHARE) * self._budget_bytes

    def make(self, size: int, *, with_reserve: bool = False, spare_own: bool = False) -> None:
        """Evicts until ``size`` bytes more fit the budget. Raises ``StorageError`` if that cannot be."""
        if self._budget_bytes is None:
            return
        held = self.total_bytes()
        if held + size > self._budget_bytes:
            self.evict(room_bytes=size, with_reserve=with_reserve, spare_own=spare_own)
            held = self.total_bytes()
        if held + size > self._budget_bytes:
            raise StorageError(
                f"{size} bytes do not fit: {held} of {self._budget_bytes} bytes of {self._directory} are in use or "
                "just fetched; raise swarm.store_bytes"
            )

    def evict(self, *, room_bytes: int = 0, with_reserve: bool = True, spare_own: bool = False) -> list[bytes]:
        """Evicts until the store is within its budget with ``room_bytes`` to spare, if it can. Returns the evicted.

        ``with_reserve`` keeps at least ``RESERVE_SHARE`` free; with ``spare_own`` only fetched blobs are evicted.
        """
        if self._budget_bytes is None:
            return []
        if with_reserve:
            room_bytes = max(room_bytes, int(RESERVE_SHARE * self._budget_bytes))
        now_seconds = self._wall_clock()
        self.drop_partials(self.total_bytes() + room_bytes - self._budget_bytes)
        evicted: list[bytes] = []
        for _ in range(EVICTION_ROUNDS):
            excess_bytes = self.total_bytes() + room_bytes - self._budget_bytes
            if excess_bytes <= 0:
                break
            with suppress(OSError):
                self.packed.flush(now_seconds)
                self.packed.compact(wanted_bytes=excess_bytes)
            chosen = choose_evictions(
                () if spare_own else self._evictable(now_seconds, fetched=False),
                self._evictable(now_seconds, fetched=True),
                excess_bytes=self.total_bytes() + room_bytes - self._budget_bytes,
                fetched_bytes=self.files.fetched_bytes + self.packed.fetched_bytes,
                budget_bytes=self._budget_bytes,
            )
            if not self.remove(chosen):
                break
            evicted += chosen
        return evicted

    def expire(self) -> bool:
        """Deletes some of what expired; returns whether there may be more."""
        expired = self._expired(self._wall_clock())
        return self.remove(expired) and len(expired) >= EXPIRED_AT_ONCE

    def drop_partials(self, excess_bytes: int) -> None:
        """Drops interrupted fetches beyond their share, and enough to free ``excess_bytes`` if that can be."""
        self.partials.drop(
            budget_bytes=self._budget_bytes or 0, excess_bytes=excess_bytes, now_seconds=self._wall_clock()
        )

    def _evictable(self, now_seconds: float, *, fetched: bool) -> Iterable[EvictableBlob]:
        """The blobs of one kind that may be evicted, the least recently used first."""
        both = heapq.merge(
            self.packed.oldest(fetched=fetched, limit=EVICTED_AT_ONCE),
            self.files.oldest(now_seconds, fetched=fetched),
            key=lambda each: each.used_at_seconds,
        )
        in_use_from_seconds = now_seconds - self._grace_seconds
        for each in takewhile(lambda each: each.used_at_seconds <= in_use_from_seconds, both):
            if not self._is_kept(each.blob):
                yield each

    def _expired(self, now_seconds: float) -> list[bytes]:
        if self._expire_seconds is None:
            return []
        before_seconds = now_seconds - self._expire_seconds
        unused = self.files.unused_since(before_seconds, now_seconds)
        expired = [blob for blob, size in unused if size <= GROUP_BLOB_BYTES]
        for is_fetched in (True, False):
            oldest = self.packed.oldest(fetched=is_fetched, limit=EXPIRED_AT_ONCE)
            expired += [each.blob for each in oldest if each.used_at_seconds <= before_seconds]
        for blob in filter(self._is_kept, expired):
            self._touch(blob, now_seconds)  # so that no batch consists of these alone
        return [blob for blob in expired if not self._is_kept(blob)][:EXPIRED_AT_ONCE]

    def remove(self, blobs: Sequence[bytes]) -> bool:
        """Deletes whole blobs; returns whether there were any and the disk let go of them."""
        try:
            packed = [blob for blob in blobs if not self.files.remove(blob)]
            if packed:
                self.packed.remove(packed)
        except OSError as error:
            log.warning("%d blobs cannot be deleted: %s", len(blobs), error)
            return False
        return bool(blobs)

    def _is_kept(self, blob: bytes) -> bool:
        return any(blob in blobs for blobs in self._kept)

    def _touch(self, blob: bytes, now_seconds: float) -> None:
        if not self.files.touch(blob, now_seconds):
            self.packed.touch(blob, now_seconds)
