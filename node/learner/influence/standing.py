"""How much each peer may move the learner, by what followed after learning from it. Pure: the round is an argument.

    influence 0            while a peer waits for a place, or is set aside after harm
    1/P, 2/P, … 1          one step more for every round learnt from it without harm, P = PROBATION_ROUNDS, once it is
                           known what own success is
    back to 0              with harm: set aside for SET_ASIDE_ROUNDS, twice as long each time, then a newcomer again

Peers below 1 are newcomers. Few of them teach at a time (``PLACES``), and harm is put down to the newcomers of the
rounds in which success fell. Where there was none, or hardly any, the peers with influence are all suspected: they
become newcomers again, the one that taught least first, and the next fall shows which of them it was. After harm there
is one place for a while: a newcomer that teaches alone is known to be the cause of the next fall.

A stranger has any number of names. Each name has to wait for a place, and what all newcomers may do together is halved
with each harm (``caution``), down to ``LEAST_CAUTION``, and comes back slowly. Who is pushed out: of the peers that are
remembered, the one without harm that was last learnt from longest ago.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

PROBATION_ROUNDS: Final = 4  # what a fall by half takes to be seen (``watch``); longer costs newcomers and the learner
PLACES: Final = 4  # each begins with a quarter of its influence: together they do what newcomers may (``shares``)
PLACES_AFTER_HARM: Final = 1
WARY_ROUNDS: Final = 50  # after harm
AWAY_ROUNDS: Final = 5  # without anything from a newcomer, after which its place is free
SET_ASIDE_ROUNDS: Final = 20
MOST_SET_ASIDE_ROUNDS: Final = 20 << 10
USELESS_ROUNDS: Final = 3  # one after another, without anything worth copying: set aside, for a shorter time
USELESS_SET_ASIDE_ROUNDS: Final = 5  # a policy that is still poor may write better soon
NEWCOMERS_SHARE: Final = 0.05  # of what was learnt from others while success fell, from which on they are the cause
LEAST_CAUTION: Final = 1 / 32
CAUTION_GROWTH: Final = 1.05  # a round: halved caution is back after 14
MOST_PEERS: Final = 1024


@dataclass(frozen=True, slots=True)
class TeacherStanding:
    """The standing of one peer."""

    calm_rounds: int = 0  # learnt from it without harm, since the last harm
    set_aside: int = 0  # how often
    returns_in_round: int = 0
    last_round: int = 0  # in which it was learnt from
    useless_rounds: int = 0  # one after another

    @property
    def proven(self) -> bool:
        return self.calm_rounds >= PROBATION_ROUNDS


NEWCOMER: Final = TeacherStanding()


@dataclass(slots=True)
class Standings:
    """The standing of every peer. ``trusting``: peers start with full influence, as the members of a private cluster
    do."""

    trusting: bool = False
    peers: dict[str, TeacherStanding] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)  # of newcomers: the round in which it last sent something
    caution: float = 1.0
    wary_until_round: int = 0

    def of(self, peer: str) -> TeacherStanding:
        return self.peers.get(peer) or (TeacherStanding(PROBATION_ROUNDS) if self.trusting else NEWCOMER)

    def influence(self, peer: str, round_number: int) -> float:
        """Returns 0 to 1: for a newcomer, what it has while it has a place."""
        standing = self.of(peer)
        if round_number < standing.returns_in_round:
            return 0.0
        return min(1.0, (1 + standing.calm_rounds) / PROBATION_ROUNDS) if not standing.proven else 1.0

    def admits(self, peer: str, round_number: int) -> bool:
        """Returns whether groups of ``peer`` can be learnt from in this round."""
        if self.influence(peer, round_number) == 0:
            return False
        return self.of(peer).proven or peer in self.places or len(self._held(round_number)) < self._places(round_number)

    def seat(self, peers: Sequence[str], round_number: int, draws: random.Random) -> None:
        """Gives free places to the newcomers among ``peers``, who have sent something in this round. Those set aside
        least often come first; among them chance decides, since names cost nothing."""
        self.places = self._held(round_number)
        waiting = [p for p in dict.fromkeys(peers) if p not in self.places and not self.of(p).proven]
        waiting = [p for p in waiting if self.influence(p, round_number) > 0]
        draws.shuffle(waiting)
        waiting.sort(key=lambda p: self.of(p).set_aside)
        free = max(0, self._places(round_number) - len(self.places))
        for peer in [*(p for p in self.places if p in peers), *waiting[:free]]:
            self.places[peer] = round_number

    def taught(self, peers: Sequence[str], round_number: int) -> None:
        """Records the peers from which this round learnt."""
        for peer in peers:
            self._set(peer, replace(self.of(peer), last_round=round_number, useless_rounds=0))

    def useless(self, peer: str, round_number: int) -> None:
        """Records that no group of ``peer`` in this round was worth copying. A peer that was set aside before
        and comes back with the same has no second chance."""
        rounds = self.of(peer).useless_rounds + 1
        self._set(peer, replace(self.of(peer), useless_rounds=rounds))
        if rounds >= USELESS_ROUNDS or self.of(peer).set_aside:
            self._put_aside(peer, round_number, USELESS_SET_ASIDE_ROUNDS)

    def calm(self, peers: Sequence[str]) -> None:
        """Records that success did not fall after learning from ``peers``."""
        for peer in peers:
            self._set(peer, replace(self.of(peer), calm_rounds=min(PROBATION_ROUNDS, self.of(peer).calm_rounds + 1)))
        self.caution = min(1.0, self.caution * CAUTION_GROWTH)

    def responsible_newcomers(self, shares: Mapping[str, float]) -> list[str]:
        """Returns the newcomers that taught, if together they had enough of ``shares`` to be the cause."""
        newcomers = [peer for peer, share in shares.items() if share > 0 and not self.of(peer).proven]
        enough = sum(shares[peer] for peer in newcomers) >= NEWCOMERS_SHARE * sum(shares.values())
        return newcomers if enough else []

    def returns_in_round(self, peers: Sequence[str]) -> int:
        """Returns the first round in which all of ``peers`` may teach again; 0 where none is set aside."""
        return max((self.of(peer).returns_in_round for peer in peers), default=0)

    def blame(self, shares: Mapping[str, float], round_number: int) -> list[str]:
        """Takes that success fell while peers had ``shares`` of what was learnt from others; returns who is set aside
        or must prove itself again."""
        self.caution = max(LEAST_CAUTION, self.caution / 2)
        self.wary_until_round = round_number + WARY_ROUNDS
        newcomers = self.responsible_newcomers(shares)
        if newcomers:
            for peer in newcomers:
                self._put_aside(peer, round_number)
            return newcomers
        suspects = sorted((peer for peer, share in shares.items() if share > 0), key=lambda peer: shares[peer])
        for peer in suspects:
            self._set(peer, replace(self.of(peer), calm_rounds=0))
        return suspects

    def _put_aside(self, peer: str, round_number: int, first: int = SET_ASIDE_ROUNDS) -> None:
        standing = self.of(peer)
        rounds = min(MOST_SET_ASIDE_ROUNDS, first << min(standing.set_aside, 16))
        self.places.pop(peer, None)
        self._set(
            peer,
            TeacherStanding(
                set_aside=standing.set_aside + 1, returns_in_round=round_number + rounds, last_round=round_number
            ),
        )

    def _held(self, round_number: int) -> dict[str, int]:
        return {
            peer: seen
            for peer, seen in self.places.items()
            if round_number - seen <= AWAY_ROUNDS
            and not self.of(peer).proven
            and self.influence(peer, round_number) > 0
        }

    def _places(self, round_number: int) -> int:
        return PLACES_AFTER_HARM if round_number < self.wary_until_round else PLACES

    def _set(self, peer: str, standing: TeacherStanding) -> None:
        self.peers[peer] = standing
        while len(self.peers) > MOST_PEERS:
            del self.peers[min(self.peers, key=lambda p: (self.peers[p].set_aside > 0, self.peers[p].last_round, p))]
