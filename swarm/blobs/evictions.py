"""What leaves a full content store, and in which order. Pure: from disk bytes and times of use alone.

1. Interrupted fetches, those of small blobs before those of large ones, the oldest first. No whole blob leaves while
   one of them is there.
2. What was fetched from peers, while that is ``FETCHED_SHARE`` of the store or more: peers decide how large it is,
   and must not push out what this node serves.
3. The least recently used of all.

A blob that is pinned, being read, or used within the grace period stays; ``swarm.blobs.store`` leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from protocol.limits import GROUP_BLOB_BYTES

FETCHED_SHARE = 0.5  # of the store; from there on, fetched blobs are evicted before own ones
RESERVE_SHARE = 1 / 16  # of the store; kept free, so that fetches need not evict anything while they run
SMALL_PARTIALS_SHARE = 1 / 64  # of the store, for interrupted fetches of groups: they are cheap to fetch again
LARGE_PARTIALS_SHARE = 1 / 4  # for those of states and weights, which this node chose one at a time


class EvictableBlob(NamedTuple):
    """One whole blob that may leave."""

    blob: bytes
    disk_bytes: int  # that it takes
    used_at_seconds: float


@dataclass(frozen=True, slots=True)
class InterruptedFetch:
    """The files of a fetch that no task continues now."""

    blob_bytes: int  # of the whole blob
    held_bytes: int  # on the disk
    used_at_seconds: float

    @property
    def is_small(self) -> bool:
        """Whether the blob may be a group. Anybody can advertise any number of groups."""
        return self.blob_bytes <= GROUP_BLOB_BYTES


def choose_evictions(
    own: Iterable[EvictableBlob],
    fetched: Iterable[EvictableBlob],
    *,
    excess_bytes: int,
    fetched_bytes: int,
    budget_bytes: int,
) -> list[bytes]:
    """Returns the blobs to evict, in order, so that ``excess_bytes`` are freed, if that can be.

    Both kinds come least recently used first, without those that must stay; they are read only as far as needed.
    ``fetched_bytes`` are those of all blobs that came from peers.
    """
    own, fetched = iter(own), iter(fetched)
    next_own, next_fetched = next(own, None), next(fetched, None)
    evicted: list[bytes] = []
    while excess_bytes > 0:
        are_too_many = fetched_bytes >= FETCHED_SHARE * budget_bytes
        takes_fetched = next_fetched is not None and (
            next_own is None or are_too_many or next_fetched.used_at_seconds <= next_own.used_at_seconds
        )
        leaving = next_fetched if takes_fetched else next_own
        if leaving is None:
            break
        evicted.append(leaving.blob)
        excess_bytes -= leaving.disk_bytes
        if takes_fetched:
            fetched_bytes -= leaving.disk_bytes
            next_fetched = next(fetched, None)
        else:
            next_own = next(own, None)
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
