"""Reputation: how likely a peer's next claim holds, by what it did before.

    reputation = (1 + good) / (2 + good + bad)          ½ for a stranger, toward 1 for good conduct, toward 0 for bad
    good, bad  = Σ weight(event) · 2^(−age / half-life)  so that every reputation returns to ½

A peer is banned once its proven faults (false rewards, undecodable groups, wrong chunks, hostile requests, unusable
weights; each decays alike) reach ``BAN_FAULTS`` and ``BAN_SHARE`` of all that was judged. A stall, a missing blob, a
stream that broke off, or weights far from ours cost reputation and are never a reason for a ban: they prove nothing. A
ban lasts ``BAN_SECONDS``, doubled each time up to ``MAX_BAN_SECONDS``, and is kept on disk; afterwards the peer is a
stranger again.

Bytes that verify are no good conduct: a peer chooses what it announces, and would earn by being fetched from. Whether
claims that were checked held (``has_held``) is asked apart from the reputation, which averaging raises too.

Identities cost nothing, and so do bans: who makes up identities also makes up banned ones. Bans and standings
therefore have places of their own (``ReputationBook``), and no number of either pushes out a peer whose claims held.

Nothing here reads a clock: ``now_seconds`` is Unix time, because records are kept over restarts.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from protocol.errors import StorageError
from swarm.api import Judgement
from swarm.atomic_file import write_atomically

HALF_LIFE_SECONDS = 3600.0
PROVEN_REPUTATION = 0.6  # one group whose claims held
BAN_FAULTS = 2.5  # three within about twenty minutes
BAN_SHARE = 0.1
BAN_SECONDS = 3600.0
MAX_BAN_SECONDS = 24 * 3600.0
PEERS_REMEMBERED = 4096  # that are not banned
BANS_REMEMBERED = 1024
DROPPED_AT_ONCE = 1 / 8  # of either, when there is no room: what is least worth is looked for seldom


class Conduct(StrEnum):
    """What a peer was observed to do. The values of ``Judgement`` are among them."""

    USED = "used"
    UNUSED = "unused"
    FALSE_REWARD = "false_reward"
    MALFORMED = "malformed"
    WRONG_CHUNK = "wrong_chunk"  # sent bytes that do not match their hash
    HOSTILE_REQUEST = "hostile_request"  # sent a request that no honest peer sends
    STALLED = "stalled"  # accepted a request and sent nothing more
    BROKE_OFF = "broke_off"  # began to answer and ended the stream before the first chunk
    MISSING = "missing"  # did not have what it advertised
    AVERAGED = "averaged"  # gave weights that were averaged with ours
    OUTLIER = "outlier"  # gave weights too far from ours, which proves nothing
    UNFIT_WEIGHTS = "unfit_weights"  # gave weights not of their layout, not finite, or out of bounds
    FALSE_SUCCESS = "false_success"  # claimed a success that its weights did not have when they were measured
    HARMFUL_WEIGHTS = "harmful_weights"  # our success fell after averaging with its weights, perhaps by chance
    UNLIKE = "unlike"  # offered weights of another family or layout than ours


_GOOD = {Conduct.USED: 1.0, Conduct.UNUSED: 0.5, Conduct.AVERAGED: 0.5}
_HELD = {Conduct.USED, Conduct.UNUSED}
_BAD = {
    Conduct.FALSE_REWARD: 4.0,
    Conduct.MALFORMED: 4.0,
    Conduct.WRONG_CHUNK: 4.0,
    Conduct.HOSTILE_REQUEST: 2.0,
    Conduct.STALLED: 0.5,
    Conduct.BROKE_OFF: 0.5,
    Conduct.MISSING: 0.2,
    Conduct.OUTLIER: 1.0,
    Conduct.UNFIT_WEIGHTS: 4.0,
    Conduct.FALSE_SUCCESS: 2.0,  # measured on a sample, so it bans nobody
    Conduct.HARMFUL_WEIGHTS: 1.0,  # chance looks like harm too
    Conduct.UNLIKE: 0.5,
}
_PROVEN = {
    Conduct.FALSE_REWARD: "false rewards",
    Conduct.MALFORMED: "undecodable groups",
    Conduct.WRONG_CHUNK: "chunks that do not match their hash",
    Conduct.HOSTILE_REQUEST: "hostile requests",
    Conduct.UNFIT_WEIGHTS: "unusable weights",
}

Weight = Annotated[float, Meta(ge=0.0)]


class PeerReputation(Struct, frozen=True):
    """Everything that is kept of one peer; amounts are decayed up to ``at_seconds``."""

    at_seconds: float
    good: Weight = 0.0
    bad: Weight = 0.0
    judged: Weight = 0.0  # number of events that prove good or bad conduct
    held: Weight = 0.0  # the part of ``good`` that are claims which were checked
    faults: dict[Conduct, float] = {}
    bans: int = 0
    banned_until_seconds: float = 0.0
    banned_because: str = ""


def decayed(record: PeerReputation, now_seconds: float) -> PeerReputation:
    """Returns the record as of ``now_seconds``; a clock that went backwards changes nothing."""
    age_seconds = max(0.0, now_seconds - record.at_seconds)
    kept = 0.5 ** (age_seconds / HALF_LIFE_SECONDS)
    return msgspec.structs.replace(
        record,
        at_seconds=max(now_seconds, record.at_seconds),
        good=record.good * kept,
        bad=record.bad * kept,
        judged=record.judged * kept,
        held=record.held * kept,
        faults={kind: count * kept for kind, count in record.faults.items()},
    )


def reputation(record: PeerReputation, now_seconds: float) -> float:
    """Returns 0 for a banned peer, ½ for an unknown one, otherwise a number in (0, 1)."""
    if is_banned(record, now_seconds):
        return 0.0
    now = decayed(record, now_seconds)
    return (1.0 + now.good) / (2.0 + now.good + now.bad)


def has_held(record: PeerReputation, now_seconds: float) -> bool:
    """Whether so many claims of the peer were checked and held that it would be proven by these alone.

    The formula is that of ``reputation``, with the held claims as the only good conduct. A banned peer has none.
    """
    now = decayed(record, now_seconds)
    return not is_banned(record, now_seconds) and (1.0 + now.held) / (2.0 + now.held + now.bad) >= PROVEN_REPUTATION


def is_banned(record: PeerReputation, now_seconds: float) -> bool:
    return now_seconds < record.banned_until_seconds


def observed(record: PeerReputation, conduct: Conduct, now_seconds: float) -> PeerReputation:
    """Returns the record after one more event; banned, with the reason in words, if that event was one too many."""
    now = decayed(record, now_seconds)
    faults = dict(now.faults)
    if conduct in _PROVEN:
        faults[conduct] = faults.get(conduct, 0.0) + 1.0
    now = msgspec.structs.replace(
        now,
        good=now.good + _GOOD.get(conduct, 0.0),
        bad=now.bad + _BAD.get(conduct, 0.0),
        judged=now.judged + (conduct in _PROVEN or conduct in (Conduct.USED, Conduct.UNUSED)),
        held=now.held + (_GOOD[conduct] if conduct in _HELD else 0.0),
        faults=faults,
    )
    proven = sum(faults.values())
    if is_banned(now, now_seconds) or proven < BAN_FAULTS or proven < BAN_SHARE * now.judged:
        return now
    lasting_seconds = min(BAN_SECONDS * 2.0**now.bans, MAX_BAN_SECONDS)
    counts = ", ".join(f"{count:.0f} {_PROVEN[kind]}" for kind, count in faults.items() if count >= 0.5)
    return PeerReputation(
        at_seconds=now_seconds,
        bans=now.bans + 1,
        banned_until_seconds=now_seconds + lasting_seconds,
        banned_because=f"{counts} within the last hours; banned for {lasting_seconds / 3600:g} h",
    )


def worth(record: PeerReputation) -> float:
    """Returns a number by which records compare as by their good conduct of now; lowest where there was none."""
    return math.log2(record.good) + record.at_seconds / HALF_LIFE_SECONDS if record.good > 0.0 else -math.inf


class ReputationBook:
    """The records of at most ``PEERS_REMEMBERED`` peers and ``BANS_REMEMBERED`` banned ones, kept in ``path``.

    Above that, the peers with the least good conduct are dropped, of those alike the one observed longest ago; and the
    bans that end soonest. A peer that is dropped is a stranger again, as it would be under another identity.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._records: OrderedDict[str, PeerReputation] = OrderedDict()
        self._unsaved = False
        if path is not None and path.exists():
            try:
                self._records.update(msgspec.json.decode(path.read_bytes(), type=dict[str, PeerReputation]))
            except (OSError, msgspec.DecodeError) as error:
                raise StorageError(
                    f"cannot read {path} ({error}): delete it, and peers' reputations start anew"
                ) from error

    def observe(self, peer: str, conduct: Conduct | Judgement, now_seconds: float) -> str | None:
        """Records one event. Returns why the peer is banned if this event made it so, else None."""
        is_new = peer not in self._records
        before = self._records.get(peer) or PeerReputation(at_seconds=now_seconds)
        after = observed(before, Conduct(conduct), now_seconds)
        self._records[peer] = after
        self._records.move_to_end(peer)
        self._unsaved = True
        newly_banned = is_banned(after, now_seconds) and not is_banned(before, now_seconds)
        if (newly_banned or is_new) and len(self._records) > min(PEERS_REMEMBERED, BANS_REMEMBERED):
            self._make_room(now_seconds)
        return after.banned_because if newly_banned else None

    def _make_room(self, now_seconds: float) -> None:
        banned: list[str] = []
        free: list[str] = []
        for peer, record in self._records.items():
            (banned if is_banned(record, now_seconds) else free).append(peer)
        if len(banned) > BANS_REMEMBERED:
            banned.sort(key=lambda peer: self._records[peer].banned_until_seconds)
            self._drop(banned[: 1 + int(BANS_REMEMBERED * DROPPED_AT_ONCE)])
        if len(free) > PEERS_REMEMBERED:
            free.sort(key=lambda peer: worth(self._records[peer]))
            self._drop(free[: 1 + int(PEERS_REMEMBERED * DROPPED_AT_ONCE)])

    def _drop(self, peers: list[str]) -> None:
        for peer in peers:
            del self._records[peer]

    def of(self, peer: str, now_seconds: float) -> float:
        """Returns the peer's reputation, 0 to 1."""
        record = self._records.get(peer)
        return 0.5 if record is None else reputation(record, now_seconds)

    def has_held(self, peer: str, now_seconds: float) -> bool:
        """Whether the peer is proven by claims of its own that were checked and held."""
        record = self._records.get(peer)
        return record is not None and has_held(record, now_seconds)

    def banned_because(self, peer: str, now_seconds: float) -> str | None:
        record = self._records.get(peer)
        return record.banned_because if record is not None and is_banned(record, now_seconds) else None

    def banned(self, now_seconds: float) -> list[str]:
        """Returns the banned peers, the one observed last at the end."""
        return [peer for peer, record in self._records.items() if is_banned(record, now_seconds)]

    def save(self) -> None:
        """Writes the file if a record changed since the last time. Raises ``StorageError``."""
        if self._path is not None and self._unsaved:
            write_atomically(self._path, msgspec.json.encode(self._records))
            self._unsaved = False
