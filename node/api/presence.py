"""Which peers came and which left, from one look at the swarm process to the next.

A peer is present while it is connected, or while its heartbeats are fresh: not older than ``MISSED_HEARTBEATS`` times
as often as nodes of a swarm of this size send them. It has come once it has said its name and its model, or after
``NAMELESS_SECONDS`` without; it has left after ``ABSENT_SECONDS`` of absence, so that a connection that is made anew is
no news. Banned peers are not counted. Clock and peers are passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from node.api.types import PeerView
from node.events import NamedPeer, PeersChanged
from node.printable import printable
from protocol.limits import NAME_BYTES
from swarm.announcements.pacing import heartbeat_seconds

NAMELESS_SECONDS: Final = 15.0
ABSENT_SECONDS: Final = 15.0
MISSED_HEARTBEATS: Final = 4.0
HEARTBEAT_SECONDS: Final = 5.0  # of a small swarm, as ``SwarmSection`` sets it
REPORT_SECONDS: Final = 5.0  # at least, between two reports
MAX_NAMED: Final = 16  # of each list of a report
MAX_PRESENT: Final = 4096  # remembered; further peers are not reported


class Presence:
    """Not for concurrent use."""

    def __init__(self) -> None:
        self._present: dict[str, NamedPeer] = {}
        self._new: dict[str, float] = {}  # peers that have not come yet: since when they are seen
        self._seen: dict[str, float] = {}  # peers that are present: when they were last seen
        self._reported_at: float | None = None
        self.renamed: list[NamedPeer] = []  # present peers that the last look found under another name or model

    def look(self, now_seconds: float, round_number: int, peers: Sequence[PeerView]) -> PeersChanged | None:
        """Takes the peers as they are now; returns what has changed, None where nothing has or a report was just
        made."""
        fresh_seconds = MISSED_HEARTBEATS * heartbeat_seconds(len(peers) + 1, HEARTBEAT_SECONDS)
        here = {peer.peer: peer for peer in peers[:MAX_PRESENT] if peer.is_present(fresh_seconds)}
        self.renamed = []
        for each, view in here.items():
            self._seen[each] = now_seconds
            if each not in self._present:
                self._new.setdefault(each, now_seconds)
            elif view.heartbeat is not None and self._present[each] != _named(view):
                self._present[each] = _named(view)
                self.renamed.append(self._present[each])
        self._new = {each: since for each, since in self._new.items() if each in here}
        if self._reported_at is not None and now_seconds - self._reported_at < REPORT_SECONDS:
            return None
        came = [
            named
            for each, since in self._new.items()
            if (named := _named(here[each])).model or now_seconds - since >= NAMELESS_SECONDS
        ]
        left = [peer for each, peer in self._present.items() if now_seconds - self._seen[each] >= ABSENT_SECONDS]
        if not came and not left:
            return None
        for named in left:
            del self._present[named.peer], self._seen[named.peer]
        for named in came[: MAX_PRESENT - len(self._present)]:
            self._present[named.peer] = named
            del self._new[named.peer]
        self._reported_at = now_seconds
        return PeersChanged(
            time_seconds=now_seconds,
            round=round_number,
            came=tuple(came[:MAX_NAMED]),
            left=tuple(left[:MAX_NAMED]),
            came_total=len(came),
            left_total=len(left),
            present=len(self._present),
        )


def _named(peer: PeerView) -> NamedPeer:
    model = peer.heartbeat.model if peer.heartbeat is not None else ""
    return NamedPeer(peer.peer, printable(peer.shown_name, NAME_BYTES), printable(model, NAME_BYTES))
