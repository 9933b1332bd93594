"""What leaves a full content store, and in which order. Pure: from sizes and times of use alone.

1. Interrupted fetches, those of small blobs before those of large ones, the oldest first. No whole blob leaves while
   one of them is there.
2. What was fetched from peers, while that is ``FETCHED_SHARE`` of the store or more: peers decide how large it is,
   and must not push out what this node serves.
3. The least recently used of all.

A blob that is pinned, being read, or used within the grace period stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from protocol.limits import GROUP_BLOB_BYTES

FETCHED_SHARE = 0.5  # of the store; from there on, fetched blobs are evicted before own ones
RESERVE_SHARE = 1 / 16  # of the store; kept free, so that fetches need not evict anything while they run
SMALL_PARTIALS_SHARE = 1 / 64  # of the store, for interrupted fetches of groups: they are cheap to fetch again
LARGE_PARTIALS_SHARE = 1 / 4  # for those of states and weights, which this node chose one at a time


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One file, as last seen in the directory."""

    size: int
    used_at_seconds: float  # the file's modification time, which every use sets


@dataclass(frozen=True, slots=True)
class InterruptedFetch:
    """The files of a fetch that nobody continues now."""

    blob_bytes: int  # of the whole blob
    held_bytes: int  # on the disk
    used_at_seconds: float

    @property
    def is_small(self) -> bool:
        """Whether the blob may be a group, of which anybody can advertise any number."""
        return self.blob_bytes <= GROUP_BLOB_BYTES


def choose_evictions(
    blobs: Mapping[bytes, StoredBlob],
    *,
    budget_bytes: int,
    room_bytes: int,
    now_seconds: float,
    grace_seconds: float,
    kept: Callable[[bytes], bool],
    fetched: Collection[bytes] = (),
    spare_own: bool = False,
) -> list[bytes]:
    """Returns the blobs to evict, in order, so that the rest and ``room_bytes`` fit the budget, if that can be.

    ``fetched`` are those that came from peers; with ``spare_own`` no other blob is evicted.
    """
    excess = sum(b.size for b in blobs.values()) + room_bytes - budget_bytes
    if excess <= 0:
        return []
    fetched_bytes = sum(stored.size for blob, stored in blobs.items() if blob in fetched)
    own: deque[bytes] = deque()
    foreign: deque[bytes] = deque()
    for blob, stored in sorted(blobs.items(), key=lambda item: item[1].used_at_seconds):
        if not kept(blob) and now_seconds - stored.used_at_seconds >= grace_seconds:
            (foreign if blob in fetched else own).append(blob)
    if spare_own:
        own.clear()
    evicted: list[bytes] = []
    while excess > 0 and (own or foreign):
        are_too_many = fetched_bytes >= FETCHED_SHARE * budget_bytes
        takes_foreign = bool(foreign) and (
            not own or are_too_many or blobs[foreign[0]].used_at_seconds <= blobs[own[0]].used_at_seconds
        )
        blob = (foreign if takes_foreign else own).popleft()
        evicted.append(blob)
        excess -= blobs[blob].size
        fetched_bytes -= blobs[blob].size if takes_foreign else 0
    return evicted


def choose_dropped(fetches: Mapping[bytes, InterruptedFetch], *, budget_bytes: int, excess_bytes: int) -> list[bytes]:
    """Returns the interrupted fetches to drop: those beyond their shares of the budget, and enough to free
    ``excess_bytes``."""
    dropped: list[bytes] = []
    held = {small: sum(f.held_bytes for f in fetches.values() if f.is_small is small) for small in (True, False)}
    most = {True: SMALL_PARTIALS_SHARE * budget_bytes, False: LARGE_PARTIALS_SHARE * budget_bytes}
    for blob, fetch in sorted(fetches.items(), key=lambda item: (not item[1].is_small, item[1].used_at_seconds)):
        if excess_bytes > 0 or held[fetch.is_small] > most[fetch.is_small]:
            dropped.append(blob)
            held[fetch.is_small] -= fetch.held_bytes
            excess_bytes -= fetch.held_bytes
    return dropped
