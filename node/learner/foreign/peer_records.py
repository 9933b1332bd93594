"""What the learner remembers of the peers whose groups it took, and the standing that follows from it.

    reliability ← reliability + step · (outcome − reliability)          1 for an unknown peer

| a group of the peer | outcome | step |
|---|---|---|
| fetched, and every claim held | 1 | ``HELD_STEP`` |
| fetched, and a claim did not hold | 0 | ``LIE_STEP``: one lie, and a peer comes after all others |
| could not be fetched | 0 | ``MISSED_STEP``: it may be the network's fault |
| a copy of what was learnt already | ½ | ``COPY_STEP``: it may be the one that was copied |

A peer is proven once ``HELD_TO_BE_PROVEN`` of its groups held, and as long as its reliability is at least
``PROVEN_RELIABILITY`` and its latest group was served and true. After a failure it rests, twice as long each time that
it fails in a row. Memory is bounded: the record that changed longest ago makes room, those of proven peers last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from swarm.announcements.crowding import Standing

MAX_REMEMBERED_PEERS = 1024
HELD_STEP = 0.25
LIE_STEP = 0.6
MISSED_STEP = 0.2
COPY_STEP = 0.1
DIVERGENCE_STEP = 0.2  # of the running mean, per round
HELD_TO_BE_PROVEN = 2
PROVEN_RELIABILITY = 0.75
MIN_RELIABILITY = 0.5  # a peer below it comes last
REST_SECONDS = 10.0  # after the first failure
MAX_REST_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What is remembered of one peer."""

    groups_taken: int = 0  # each once, however often it was used
    reliability: float = 1.0  # 0 to 1
    divergence: float | None = None  # nats per completion; None: none of its groups has been trained on yet
    held: int = 0  # groups whose claims were checked and held
    failures: int = 0  # rounds in a row in which it lied or did not serve
    rests_until_seconds: float = 0.0  # Unix time

    @property
    def proven(self) -> bool:
        return self.held >= HELD_TO_BE_PROVEN and self.reliability >= PROVEN_RELIABILITY and not self.failures


STRANGER = PeerRecord()


class PeerRecords:
    """The records of at most ``MAX_REMEMBERED_PEERS`` peers. Not for concurrent use; ``now_seconds`` is Unix time."""

    def __init__(self, records: Mapping[str, PeerRecord] | None = None) -> None:
        self._records = OrderedDict(records or {})
        self.connected: frozenset[str] | None = None  # None: not known; then every peer counts as connected

    def __len__(self) -> int:
        return len(self._records)

    def of(self, peer: str) -> PeerRecord:
        """Returns what is remembered of the peer, or a stranger's record."""
        return self._records.get(peer, STRANGER)

    def standing(self, peer: str) -> Standing:
        record = self.of(peer)
        if record.proven:
            return Standing.PROVEN
        reachable = self.connected is None or peer in self.connected
        return Standing.STRANGER if reachable and record.reliability >= MIN_RELIABILITY else Standing.LAST

    def rests(self, peer: str, now_seconds: float) -> bool:
        """Whether the peer failed so short a time ago that nothing is fetched from it."""
        return 0 < self.of(peer).rests_until_seconds - now_seconds <= MAX_REST_SECONDS  # or the clock was set back

    def taken(self, peer: str) -> None:
        """Records that a group of the peer was chosen for the first time."""
        self._put(peer, replace(self.of(peer), groups_taken=self.of(peer).groups_taken + 1))

    def held(self, peer: str, now_seconds: float) -> None:
        """Records that every claim of one of the peer's groups held. While it rests, that does not end its failures: a
        peer that serves one group and not the others has failed."""
        record = self.of(peer)
        failures = record.failures if self.rests(peer, now_seconds) else 0
        self._put(peer, _moved(replace(record, held=record.held + 1, failures=failures), HELD_STEP, 1.0))

    def lied(self, peer: str, now_seconds: float) -> None:
        """Records that a claim of one of the peer's groups did not hold: reliability falls by ``LIE_STEP`` of itself.

        The peer rests from ``now_seconds`` on, unless it rests already: several lies of one rest are one failure.
        """
        self._put(peer, _moved(self._failed(peer, now_seconds), LIE_STEP, 0.0))

    def missed(self, peer: str, now_seconds: float) -> None:
        """Records that a group of the peer could not be fetched. While the peer rests, further ones do not count."""
        if not self.rests(peer, now_seconds):
            self._put(peer, _moved(self._failed(peer, now_seconds), MISSED_STEP, 0.0))

    def copied(self, peer: str) -> None:
        """Records that one of the peer's groups had been learnt from before, under another announcement."""
        self._put(peer, _moved(self.of(peer), COPY_STEP, 0.5))

    def measured(self, divergences: Mapping[str, float]) -> None:
        """Takes one round's mean divergence by peer, in nats per completion."""
        for peer, divergence in divergences.items():
            record = self.of(peer)
            before = divergence if record.divergence is None else record.divergence
            self._put(peer, replace(record, divergence=before + DIVERGENCE_STEP * (divergence - before)))

    def position(self) -> dict[str, list[Any]]:
        """For a checkpoint."""
        return self.kept_position()()

    def kept_position(self) -> Callable[[], dict[str, list[Any]]]:
        """As ``ReplayPool.kept_position``."""
        records = list(self._records.items())
        return lambda: {peer: list(astuple(record)) for peer, record in records}

    @classmethod
    def restored(cls, position: Mapping[str, Iterable[Any]]) -> PeerRecords:
        return cls({peer: PeerRecord(*record) for peer, record in position.items()})

    def _failed(self, peer: str, now_seconds: float) -> PeerRecord:
        record = self.of(peer)
        if self.rests(peer, now_seconds):
            return record
        rest_seconds = min(REST_SECONDS * 2.0 ** min(record.failures, 30), MAX_REST_SECONDS)
        return replace(record, failures=record.failures + 1, rests_until_seconds=now_seconds + rest_seconds)

    def _put(self, peer: str, record: PeerRecord) -> None:
        self._records[peer] = record
        self._records.move_to_end(peer)
        if len(self._records) > MAX_REMEMBERED_PEERS:
            unproven = (each for each, known in self._records.items() if not known.proven)
            del self._records[next(unproven, next(iter(self._records)))]


def _moved(record: PeerRecord, step: float, outcome: float) -> PeerRecord:
    return replace(record, reliability=record.reliability + step * (outcome - record.reliability))
