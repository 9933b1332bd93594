"""Which announced entries leave when the room for them is used up: it depends on the sender's standing.

| standing | share of the room | whose oldest entry goes when the share is used up |
|---|---|---|
| ``PROVEN``: claims of the sender were checked and held | 1/2 | that of the proven sender that takes most |
| ``STRANGER``: nothing is known of it, and it is connected | 3/8 | that of the stranger that takes most |
| ``LAST``: unconnected strangers, and senders whose claims failed | 1/8 | that of the sender of them that takes most |

So a sender pushes out entries of senders of its own standing alone, and of those only from one that takes at least as
much. New identities, however many, take nothing from a sender whose claims held. Of senders that take equally much,
the one whose entries changed longest ago makes room.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Generic, TypeVar


class Standing(IntEnum):
    """What is known of a sender."""

    LAST = 0
    STRANGER = 1
    PROVEN = 2


ROOM_SHARES = {Standing.PROVEN: 1 / 2, Standing.STRANGER: 3 / 8, Standing.LAST: 1 / 8}

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Share(Generic[Key]):
    """What one sender takes."""

    standing: Standing
    entries: OrderedDict[Key, int] = field(default_factory=OrderedDict)  # sizes, oldest first
    size: int = 0
    changed: int = 0  # rises with every change of any sender


class SenderShares(Generic[Key]):
    """The keys of what is kept, by sender. Every operation takes time logarithmic in the number of senders, amortised.

    ``standing`` is asked whenever a sender adds something, and for all senders by ``regrade``.
    """

    def __init__(self, room: int, standing: Callable[[str], Standing]) -> None:
        """``room`` is in the units of the entries' sizes."""
        self._room, self._standing = room, standing
        self._shares: dict[str, _Share[Key]] = {}
        self._sizes = dict.fromkeys(Standing, 0)
        self._largest: dict[Standing, list[tuple[int, int, str]]] = {standing: [] for standing in Standing}  # heaps
        self._changes = count(1)

    def add(self, sender: str, key: Key, size: int = 1) -> None:
        """Adds an entry that is not there yet. ``crowded_out`` then makes room."""
        self._grade(sender, self._shares.setdefault(sender, _Share(Standing.LAST)))
        self._shares[sender].entries[key] = size
        self._resize(sender, size)

    def remove(self, sender: str, key: Key) -> None:
        """Removes an entry; does nothing if it is not there."""
        share = self._shares.get(sender)
        if share is not None and key in share.entries:
            self._resize(sender, -share.entries.pop(key))

    def of(self, sender: str) -> list[Key]:
        """Returns the sender's keys, oldest first."""
        share = self._shares.get(sender)
        return list(share.entries) if share is not None else []

    def regrade(self) -> None:
        """Looks up the standing of every sender again. ``crowded_out`` then makes room."""
        for sender, share in self._shares.items():
            self._grade(sender, share)

    def crowded_out(self) -> list[Key]:
        """Removes entries until every standing keeps within its share of the room; returns them."""
        gone: list[Key] = []
        for standing, heap in self._largest.items():
            while self._sizes[standing] > ROOM_SHARES[standing] * self._room:
                _, changed, sender = heapq.heappop(heap)
                share = self._shares.get(sender)
                if share is not None and share.changed == changed:
                    key, size = share.entries.popitem(last=False)
                    gone.append(key)
                    self._resize(sender, -size)
        return gone

    def _grade(self, sender: str, share: _Share[Key]) -> None:
        standing = self._standing(sender)
        if standing is not share.standing:
            self._sizes[share.standing] -= share.size
            self._sizes[standing] += share.size
            share.standing = standing
            self._note(sender, share)

    def _resize(self, sender: str, by: int) -> None:
        share = self._shares[sender]
        share.size += by
        self._sizes[share.standing] += by
        if share.entries:
            self._note(sender, share)
        else:
            del self._shares[sender]

    def _note(self, sender: str, share: _Share[Key]) -> None:
        """Puts the sender's present size into the heap; what the heaps held of it before is outdated."""
        share.changed = next(self._changes)
        heap = self._largest[share.standing]
        heapq.heappush(heap, (-share.size, share.changed, sender))
        if len(heap) > 2 * len(self._shares) + 64:
            heap[:] = [
                (-each.size, each.changed, name)
                for name, each in self._shares.items()
                if each.standing is share.standing
            ]
            heapq.heapify(heap)
