"""Decides which connections a full node gives up, as a pure function. ``peering.py`` closes them.

Identities cost nothing, so that anybody can dial a node under a thousand of them. A node therefore gives up newcomers,
and never a connection at random. Kept for certain are configured peers, a few that it dialled itself (the oldest, and
the latest, from which it may be fetching), those whose claims held most often, and the oldest. Of all others the
youngest of the most crowded address leaves first. Whoever is here and of use stays, whatever comes, and a newcomer from
an address of its own finds a place as long as one address has more than one.

Newcomers have places of their own for ``NEWCOMER_SECONDS``, of which the oldest of the most crowded address leaves when
they are taken: a peer without a lasting place can still learn addresses and fetch, for as long as it takes strangers
at addresses as crowded as its own to make ``NEWCOMERS`` connections.

What this does not do: where strangers came first, from as many addresses as there are places, an honest newcomer is
refused by this node until one of them leaves. The places of those that this node dials itself stay free for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from swarm.address_groups import Groups, most_crowded

CONNECTIONS = 64
NEWCOMERS = 96  # above ``CONNECTIONS``
NEWCOMER_SECONDS = 20.0
KEPT_USEFUL = 24
KEPT_DIALLED = 8  # of the oldest, and as many of the latest
KEPT_OLDEST = 8
LASTED_SECONDS = 10.0  # a connection that ends sooner was refused: the other node is full
STRANGERS_STANDING = 0.5  # reputation of a peer of which nothing is known


@dataclass(frozen=True, slots=True)
class Connection:
    """A connected peer, as far as it matters for keeping it."""

    peer: str
    since_seconds: float
    groups: Groups
    is_configured: bool = False
    is_dialled: bool = False  # by us
    is_unproven: bool = False  # had the time to show that it is in our swarm, and did not
    standing: float = STRANGERS_STANDING  # reputation, 0 to 1


def superfluous(now_seconds: float, connections: Collection[Connection]) -> list[str]:
    """Returns the peers to disconnect, the first to leave first, so that no more than ``CONNECTIONS`` and ``NEWCOMERS``
    stay. Peers that are kept for certain stay even above that."""
    kept = _kept_for_certain(connections)
    others = sorted((c for c in connections if c.peer not in kept), key=lambda c: c.since_seconds)
    newcomers = [c for c in others if now_seconds - c.since_seconds < NEWCOMER_SECONDS]
    lasting = others[: len(others) - len(newcomers)]
    leaving: list[str] = []
    while len(newcomers) > NEWCOMERS:
        oldest = most_crowded(newcomers, [c.groups for c in newcomers])[0]
        newcomers.remove(oldest)
        leaving.append(oldest.peer)
    for droppable in _least_known_first(lasting):
        while droppable and len(kept) + len(lasting) > CONNECTIONS:
            youngest = most_crowded(droppable, [c.groups for c in droppable])[-1]
            droppable.remove(youngest)
            lasting.remove(youngest)
            leaving.append(youngest.peer)
    return leaving


def _least_known_first(connections: Collection[Connection]) -> tuple[list[Connection], ...]:
    return (
        [c for c in connections if c.is_unproven],
        [c for c in connections if not c.is_unproven and c.standing <= STRANGERS_STANDING],
        [c for c in connections if not c.is_unproven and c.standing > STRANGERS_STANDING],
    )


def _kept_for_certain(connections: Collection[Connection]) -> set[str]:
    by_age = sorted(connections, key=lambda c: c.since_seconds)
    useful = sorted((c for c in by_age if c.standing > STRANGERS_STANDING), key=lambda c: -c.standing)
    dialled = [c for c in by_age if c.is_dialled and not c.is_unproven and c.standing >= STRANGERS_STANDING]
    oldest = [c for c in by_age if not c.is_unproven and c.standing >= STRANGERS_STANDING]
    configured = [c for c in by_age if c.is_configured]
    of_dialled = dialled[:KEPT_DIALLED] + dialled[-KEPT_DIALLED:]
    return {c.peer for c in [*configured, *useful[:KEPT_USEFUL], *of_dialled, *oldest[:KEPT_OLDEST]]}


class ConnectionLog:
    """Since when each peer is connected, and who dialled."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._dialled: set[str] = set()

    def note_dialled(self, peer: str) -> None:
        self._dialled.add(peer)

    def observe(self, connected: Collection[str], now_seconds: float) -> list[str]:
        """Takes the peers that are connected now. Returns those that we had dialled and that did not last."""
        ended = {peer: since for peer, since in self._since.items() if peer not in connected}
        did_not_last = [p for p, since in ended.items() if p in self._dialled and now_seconds - since < LASTED_SECONDS]
        self._since = {peer: self._since.get(peer, now_seconds) for peer in connected}
        self._dialled &= self._since.keys()
        return did_not_last

    def since_seconds(self, peer: str) -> float:
        return self._since[peer]

    def is_dialled(self, peer: str) -> bool:
        return peer in self._dialled
