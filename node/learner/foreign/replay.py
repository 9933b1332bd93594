"""The groups that others announced, as this learner remembers them: candidates, their uses, what was learnt from.

A group is known by its sender and its blob: what one sender claims of a blob, or how it fails, does not touch another's
announcement of the same blob. What has been learnt from is known by its content too, so that a group counts once,
however it is compressed and from whichever peer it comes.

Nothing grows without bound. When there are too many candidates, room is made by the senders' standing
(``swarm.announcements.crowding``), which follows from what became of their groups (``peer_records``). ``choice``
decides which groups to fetch from all this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from node.learner.foreign.outcomes import ForeignOutcome
from node.learner.foreign.peer_records import PeerRecords
from protocol.messages import GroupAdvert
from swarm.announcements.crowding import SenderShares
from swarm.api import SeenGroup
from swarm.recent import Recent

MAX_CANDIDATES = 1024  # kept for later rounds
MAX_REMEMBERED_GROUPS = 8192  # used up or passed over for good, so that a second advert of one is not taken again
MAX_REMEMBERED_MARKS = 16_384  # of groups learnt from, two each; only a group that was fetched and held adds any
MAX_SAVED_MARKS = 4096  # of them in a checkpoint, the newest
COPY_SECONDS = 3600.0  # after which the same content counts as new: short answers to few prompts do repeat

Key = tuple[str, bytes]  # sender and blob


@dataclass(frozen=True, slots=True)
class ForeignChoice:
    """What to fetch, best first, and why each candidate that is dropped for good was passed over."""

    chosen: tuple[SeenGroup, ...]
    passed_over: Mapping[Key, ForeignOutcome]


def key_of(seen: SeenGroup) -> Key:
    return seen.peer, seen.advert.blob


def outline(advert: GroupAdvert) -> bytes:
    """32 bytes that two adverts share if they may well announce the same group: prompt, rewards and lengths agree.

    A copy of a group that passes the checks against its advert and has its original's tokens has its outline too.
    """
    shape = (advert.prompt, sorted(map(float, advert.rewards)), sorted(advert.lengths))
    return hashlib.sha256(msgspec.msgpack.encode(shape)).digest()


class ReplayPool:
    """Candidates, how often each was used, which groups are out for good, and the peers. Not for concurrent use."""

    def __init__(self, position: Mapping[str, Any] | None = None) -> None:
        """``position`` is that of an earlier pool, from a checkpoint. Candidates are not part of it: the swarm process
        is asked for them again, from the beginning of what it holds."""
        saved = position or {"decided": [], "learnt": {}, "peers": {}}
        self.cursor = 0  # of the newest group seen
        self.candidates: dict[Key, SeenGroup] = {}
        self.outlines: dict[Key, bytes] = {}  # of the candidates
        self.uses: dict[Key, int] = {}  # of candidates used before
        self.peers = PeerRecords.restored(saved["peers"])
        self._decided: Recent[bytes, None] = Recent(MAX_REMEMBERED_GROUPS)
        self._decided.update((bytes.fromhex(digest), None) for digest in saved["decided"])
        self._learnt: Recent[bytes, tuple[bytes, float]] = Recent(MAX_REMEMBERED_MARKS)  # by outline and content hash
        for mark, (of, at_seconds) in saved["learnt"].items():
            self._learnt[bytes.fromhex(mark)] = bytes.fromhex(of), float(at_seconds)  # the group, and Unix time
        self._shares: SenderShares[Key] = SenderShares(MAX_CANDIDATES, self.peers.standing)

    def __len__(self) -> int:
        return len(self.candidates)

    def add(self, seen: Iterable[SeenGroup]) -> list[SeenGroup]:
        """Adds the groups that are new; returns those that had to make room and were never used."""
        for group in seen:
            self.cursor = group.cursor
            key = key_of(group)
            if _digest(key) not in self._decided and key not in self.candidates:
                self.candidates[key] = group
                self.outlines[key] = outline(group.advert)
                self._shares.add(group.peer, key)
        return self._make_room()

    def settle(self, choice: ForeignChoice, max_uses: int) -> None:
        """Counts the chosen as used once more; takes out for good those passed over or used ``max_uses`` times."""
        for group in choice.chosen:
            key = key_of(group)
            if key not in self.uses:
                self.peers.taken(group.peer)
            self.uses[key] = self.uses.get(key, 0) + 1
            if self.uses[key] >= max_uses:
                self.drop(key)
        for key in choice.passed_over:
            self.drop(key)

    def drop(self, key: Key) -> None:
        """Takes a candidate out for good."""
        self._forget(key)
        self._decided[_digest(key)] = None

    def learnt(self, key: Key, marks: Sequence[bytes], now_seconds: float) -> None:
        """Remembers the outline and the content hash of a group whose claims held."""
        for mark in marks:
            if mark not in self._learnt:
                self._learnt[mark] = _digest(key), now_seconds

    def is_copy(self, key: Key, mark: bytes, now_seconds: float) -> bool:
        """Whether another group with this outline or content hash was learnt from within ``COPY_SECONDS``."""
        of, at_seconds = self._learnt.get(mark, (b"", 0.0))
        if of in (b"", _digest(key)):
            return False
        if 0 <= now_seconds - at_seconds <= COPY_SECONDS:
            return True
        del self._learnt[mark]
        return False

    def position(self) -> dict[str, Any]:
        """For a checkpoint: what a restarted learner must know to use no group twice and to remember who lied."""
        return self.kept_position()()

    def kept_position(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that returns, whenever it is called, ``position()`` as it is now. To keep it takes a tenth
        of the time that a position takes."""
        decided, uses, peers = list(self._decided), list(self.uses), self.peers.kept_position()
        learnt = list(islice(reversed(self._learnt.items()), MAX_SAVED_MARKS))

        def position() -> dict[str, Any]:
            digests = [*decided, *map(_digest, uses)][-MAX_REMEMBERED_GROUPS:]
            return {
                "decided": [digest.hex() for digest in digests],
                "learnt": {mark.hex(): [of.hex(), at_seconds] for mark, (of, at_seconds) in reversed(learnt)},
                "peers": peers(),
            }

        return position

    def _make_room(self) -> list[SeenGroup]:
        """Drops candidates and returns those never used, which may come back with another advert."""
        self._shares.regrade()
        dropped: list[SeenGroup] = []
        for key in self._shares.crowded_out():
            if key in self.uses:
                self.drop(key)
            else:
                dropped.append(self.candidates[key])
                self._forget(key)
        return dropped

    def _forget(self, key: Key) -> None:
        self._shares.remove(key[0], key)
        self.candidates.pop(key, None)
        self.outlines.pop(key, None)
        self.uses.pop(key, None)


def _digest(key: Key) -> bytes:
    return hashlib.sha256(key[0].encode() + b"\0" + key[1]).digest()[:16]
