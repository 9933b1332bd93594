"""Decides which connections a full node gives up, as a pure function. ``peering.py`` closes them.

Identities cost nothing, so that anybody can dial a node under a thousand of them. A node therefore gives up newcomers,
and never a connection at random. Kept for certain are configured peers, a few that it dialled itself (the oldest, and
the latest, from which it may be fetching), those whose claims held most often, and the oldest. Of all others the
youngest of the most crowded address leaves first. A peer that is here and of use stays, whatever comes, and a newcomer
from an address of its own finds a place as long as one address has more than one.

A peer without a lasting place, newcomers among them, has one of ``PASSING`` others, or a lasting one that is free. Of
these that peer of the most crowded address leaves that was connected for the longest time of late. So an identity that
dials again and again has such a place no longer than others have, and a newcomer, which was not connected at all, comes
before it: it learns addresses, fetches, gives, and stays once its claims hold.

A peer that brings nothing in its trial, no heartbeat of its own and no claim that held, is of no use: it does not count
toward the peers wanted, is kept for no reason but its address, and where we dialled it, it is given up for an address
that was never tried (``to_replace``). A node that joins among a crowd of silent identities so goes on to others. In a
swarm without such peers nothing is ever replaced.

What this does not do: against identities that are all new, made for one connection each, a peer that is of no use yet
and has no address of its own keeps a passing place for as long as it takes them to make ``PASSING`` connections.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from swarm.address_groups import Groups, spread
from swarm.recent import RecentAmounts

CONNECTIONS = 64
PASSING = 96  # above ``CONNECTIONS``
NEWCOMER_SECONDS = 20.0  # before which nobody has a lasting place
HALF_LIFE_SECONDS = 600.0  # of the seconds that a peer was connected
KEPT_USEFUL = 24
KEPT_DIALLED = 8  # of the oldest, and as many of the latest
KEPT_OLDEST = 8
TRIAL_HEARTBEATS = 2.5  # for so many times the time between two heartbeats a peer counts without bringing anything
REPLACED_EVERY_SECONDS = 2.0  # between two peers of no use that are given up for others
LASTED_SECONDS = 10.0  # a connection that ends sooner was refused: the other node is full
STRANGERS_STANDING = 0.5  # reputation of an unknown peer


@dataclass(frozen=True, slots=True)
class Connection:
    """A connected peer, as far as it matters for keeping it."""

    peer: str
    since_seconds: float
    groups: Groups
    is_configured: bool = False
    is_dialled: bool = False  # by us
    is_unproven: bool = False  # had the time to show that it is in our swarm, and did not
    is_useless: bool = False  # had its trial, and brought nothing
    standing: float = STRANGERS_STANDING  # reputation, 0 to 1
    recent_seconds: float = 0.0  # for which it was connected of late, this time and before


def superfluous(now_seconds: float, connections: Collection[Connection], further_places: int = 0) -> list[str]:
    """Returns the peers to disconnect, the first to leave first, so that no more than ``CONNECTIONS`` and ``PASSING``
    stay. Peers that are kept for certain stay even above that. A relay has ``further_places`` that last."""
    lasting_places = CONNECTIONS + further_places
    if len(connections) <= lasting_places:
        return []
    kept = kept_for_certain(connections)
    others = sorted((c for c in connections if c.peer not in kept), key=lambda c: c.since_seconds)
    newcomers = [c for c in others if now_seconds - c.since_seconds < NEWCOMER_SECONDS]
    settled = others[: len(others) - len(newcomers)]
    lasting = [c for known in (2, 1, 0) for c in _spread([c for c in settled if _known(c) == known])]
    without = lasting[max(0, lasting_places - len(kept)) :]
    passing = [*newcomers, *(c for c in without if _known(c))]
    passing = _spread(sorted(passing, key=lambda c: c.recent_seconds))
    free_places = max(0, lasting_places - len(kept) - len(settled))
    leaving = [*passing[PASSING + free_places :], *(c for c in without if not _known(c))]
    return [c.peer for c in reversed(leaving)]


def _spread(connections: Collection[Connection]) -> list[Connection]:
    """Returns them in the order in which they get places: who is first at its address before any that is second."""
    return spread(connections, [c.groups for c in connections])


def _known(connection: Connection) -> int:
    if connection.is_unproven or connection.is_useless:
        return 0
    return 1 if connection.standing <= STRANGERS_STANDING else 2


def kept_for_certain(connections: Collection[Connection]) -> set[str]:
    """Returns the peers whose connections are not given up for any other."""
    aged = by_age(connections)
    useful = sorted((c for c in aged if c.standing > STRANGERS_STANDING), key=lambda c: -c.standing)
    oldest = [c for c in aged if _known(c) and c.standing >= STRANGERS_STANDING]
    dialled = [c for c in oldest if c.is_dialled]
    configured = [c for c in aged if c.is_configured]
    of_dialled = dialled[:KEPT_DIALLED] + dialled[-KEPT_DIALLED:]
    return {c.peer for c in [*configured, *useful[:KEPT_USEFUL], *of_dialled, *oldest[:KEPT_OLDEST]]}


def to_replace(useless: Collection[Connection]) -> str | None:
    """Returns the peer of no use to give up next for one that was not tried: the oldest that we dialled, or None."""
    dialled = [c for c in useless if c.is_dialled and not c.is_configured]
    return min(dialled, key=lambda c: (c.since_seconds, c.peer)).peer if dialled else None


def recommended(connections: Collection[Connection]) -> tuple[list[Connection], ...]:
    """Returns the connections in parts, those first that a newcomer should dial first: which we found useful, then as
    many of the oldest as of those that we dialled first. A crowd that dials us can be none of these at will, however
    large it is; one that was here before everybody, or that got us to dial it, is half of the second part at most."""
    certain = kept_for_certain(connections)
    kept = [c for c in by_age(connections) if c.peer in certain]
    useful = [c for c in kept if c.standing > STRANGERS_STANDING]
    others = [c for c in kept if c.standing <= STRANGERS_STANDING]
    oldest = others[: KEPT_OLDEST // 2]
    first = oldest + [c for c in others if c.is_dialled and c not in oldest][: KEPT_OLDEST // 2]
    named = {c.peer for c in (*useful, *first)}
    return useful, first, [c for c in kept if c.peer not in named], [c for c in connections if c.peer not in certain]


def by_age(connections: Collection[Connection]) -> list[Connection]:
    """Returns the connections, the oldest first."""
    return sorted(connections, key=lambda c: c.since_seconds)


class ConnectionLog:
    """Since when each peer is connected, for how long it was before, and who dialled."""

    def __init__(self) -> None:
        self._before = RecentAmounts(HALF_LIFE_SECONDS)
        self._since: dict[str, float] = {}
        self._dialled: set[str] = set()

    def note_dialled(self, peer: str) -> None:
        self._dialled.add(peer)

    def observe(self, connected: Collection[str], now_seconds: float) -> list[str]:
        """Takes the peers that are connected now. Returns those that we had dialled and that did not last."""
        ended = {peer: since for peer, since in self._since.items() if peer not in connected}
        for peer, since_seconds in ended.items():
            self._before.add(peer, now_seconds - since_seconds, now_seconds)
        did_not_last = [p for p, since in ended.items() if p in self._dialled and now_seconds - since < LASTED_SECONDS]
        self._since = {peer: self._since.get(peer, now_seconds) for peer in connected}
        self._dialled &= self._since.keys()
        return did_not_last

    def since_seconds(self, peer: str, now_seconds: float) -> float:
        return self._since.get(peer, now_seconds)

    def recent_seconds(self, peer: str, now_seconds: float) -> float:
        """For how long the peer was connected of late; what was before this connection halves in
        ``HALF_LIFE_SECONDS``."""
        return self._before.of(peer, now_seconds) + now_seconds - self.since_seconds(peer, now_seconds)

    def is_dialled(self, peer: str) -> bool:
        return peer in self._dialled
