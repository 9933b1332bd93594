"""The groups that others announced, as this learner remembers them: candidates, their uses, a record of each peer.

Nothing grows without bound, and no peer can make the learner forget the groups of others: when there are too many
candidates, the peer with the most of them loses its oldest. The record of a peer says how often its claims held,

    reliability ← reliability + step · (1 if the claim held else 0 − reliability)      1 for a stranger

and how far its policy is from ours, as measured on what was trained on (``objective.report``). ``choice`` decides which
groups to fetch from all this.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from node.learner.foreign.outcomes import ForeignOutcome
from swarm.api import SeenGroup

MAX_CANDIDATES = 1024  # kept for later rounds
MAX_REMEMBERED_BLOBS = 8192  # used up or passed over for good, so that a second advert of a blob is not taken again
MAX_REMEMBERED_PEERS = 1024  # the peer whose record changed longest ago makes room
CHECKED_STEP = 0.25  # of reliability, for a group that was checked; three lies take a newcomer below one half
MISSED_STEP = 0.05  # the same for a group that could not be fetched, which may be the network's fault
DIVERGENCE_STEP = 0.2  # of the running mean, per round


@dataclass(frozen=True, slots=True)
class ForeignChoice:
    """What to fetch, best first, and why each other candidate that is not kept was passed over for good."""

    chosen: tuple[SeenGroup, ...]
    passed_over: Mapping[bytes, ForeignOutcome]  # by blob


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What is remembered of one peer."""

    groups_taken: int = 0  # each once, however often it was used
    reliability: float = 1.0  # 0 to 1
    divergence: float | None = None  # nats per completion; None: none of its groups has been trained on yet


@dataclass(slots=True)
class ReplayPool:
    """Candidates, how often each was used, and which groups are out for good. Not for concurrent use."""

    cursor: int = 0  # of the newest group seen
    candidates: OrderedDict[bytes, SeenGroup] = field(default_factory=OrderedDict)
    uses: dict[bytes, int] = field(default_factory=dict)  # of candidates used before
    decided: OrderedDict[bytes, None] = field(default_factory=OrderedDict)  # out for good
    peers: OrderedDict[str, PeerRecord] = field(default_factory=OrderedDict)

    def add(self, seen: Iterable[SeenGroup]) -> list[SeenGroup]:
        """Adds the groups that are new; returns those that had to make room and were never used."""
        for group in seen:
            self.cursor = group.cursor
            blob = group.advert.blob
            if blob not in self.decided and blob not in self.candidates:
                self.candidates[blob] = group
        return self._make_room() if len(self.candidates) > MAX_CANDIDATES else []

    def settle(self, choice: ForeignChoice, max_uses: int) -> None:
        """Counts the chosen as used once more; takes out for good those passed over or used ``max_uses`` times."""
        for group in choice.chosen:
            blob = group.advert.blob
            if blob not in self.uses:
                record = self.peer(group.peer)
                self._remember(group.peer, replace(record, groups_taken=record.groups_taken + 1))
            self.uses[blob] = self.uses.get(blob, 0) + 1
            if self.uses[blob] >= max_uses:
                self._decide(blob)
        for blob in choice.passed_over:
            self._decide(blob)

    def drop(self, blob: bytes) -> None:
        """Takes a candidate out for good: a check refused it, or it cannot be fetched."""
        self._decide(blob)

    def peer(self, peer: str) -> PeerRecord:
        """Returns what is remembered of the peer, or a stranger's record."""
        return self.peers.get(peer, PeerRecord())

    def checked(self, peer: str, *, held: bool) -> None:
        """Records that one of the peer's groups was checked after fetching, and whether its claims held."""
        self._move_reliability(peer, CHECKED_STEP, float(held))

    def missed(self, peer: str) -> None:
        """Records that one of the peer's groups could not be fetched."""
        self._move_reliability(peer, MISSED_STEP, 0.0)

    def measured(self, divergences: Mapping[str, float]) -> None:
        """Takes one round's mean divergence by peer, in nats per completion."""
        for peer, divergence in divergences.items():
            record = self.peer(peer)
            before = divergence if record.divergence is None else record.divergence
            self._remember(peer, replace(record, divergence=before + DIVERGENCE_STEP * (divergence - before)))

    def position(self) -> dict[str, Any]:
        """For a checkpoint: what a restarted learner must know to use no group twice and to remember who lied."""
        decided = [blob.hex() for blob in [*self.decided, *self.uses]]
        peers = {peer: [r.groups_taken, r.reliability, r.divergence] for peer, r in self.peers.items()}
        return {"decided": decided[-MAX_REMEMBERED_BLOBS:], "peers": peers}

    @classmethod
    def restored(cls, position: Mapping[str, Any]) -> ReplayPool:
        decided = OrderedDict((bytes.fromhex(blob), None) for blob in position["decided"])
        # Candidates are not kept: the swarm process is asked for them again, from the beginning of what it holds.
        peers = OrderedDict((peer, PeerRecord(*record)) for peer, record in position.get("peers", {}).items())
        return cls(decided=decided, peers=peers)

    def _make_room(self) -> list[SeenGroup]:
        """Drops candidates and returns those never used, which may come back with another advert."""
        held: dict[str, deque[bytes]] = {}
        for blob, group in self.candidates.items():
            held.setdefault(group.peer, deque()).append(blob)
        dropped: list[SeenGroup] = []
        while len(self.candidates) > MAX_CANDIDATES:
            blob = held[max(held, key=lambda peer: (len(held[peer]), peer))].popleft()
            if blob in self.uses:
                self._decide(blob)
            else:
                dropped.append(self.candidates.pop(blob))
        return dropped

    def _decide(self, blob: bytes) -> None:
        self.candidates.pop(blob, None)
        self.uses.pop(blob, None)
        self.decided[blob] = None
        while len(self.decided) > MAX_REMEMBERED_BLOBS:
            self.decided.popitem(last=False)

    def _move_reliability(self, peer: str, step: float, outcome: float) -> None:
        record = self.peer(peer)
        self._remember(peer, replace(record, reliability=record.reliability + step * (outcome - record.reliability)))

    def _remember(self, peer: str, record: PeerRecord) -> None:
        self.peers[peer] = record
        self.peers.move_to_end(peer)
        while len(self.peers) > MAX_REMEMBERED_PEERS:
            self.peers.popitem(last=False)
