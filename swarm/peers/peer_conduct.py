"""What peers are reported to have done, and what follows: their counts, their standing, a ban.

Reports come from the learner, which judges groups, and from all that fetches, serves and averages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from swarm import api
from swarm.announcements.crowding import Standing
from swarm.announcements.pacing import PRESENT_SECONDS
from swarm.cluster.membership import Membership
from swarm.host import Host, PeerId
from swarm.peers.keeping import STRANGERS_STANDING
from swarm.peers.peer_table import PeerTable
from swarm.peers.reputation import Conduct, ReputationBook

log = logging.getLogger(__name__)

STRANGER_REPUTATION = 0.4  # below it more was wrong than right


class PeerConduct:
    """Reports change a peer's reputation at once."""

    def __init__(
        self,
        host: Host,
        table: PeerTable,
        reputations: ReputationBook,
        membership: Membership | None,
        *,
        on_banned: Callable[[PeerId, str], None],
        wall_clock: Callable[[], float],
    ) -> None:
        """``on_banned`` is called with the reason. ``membership`` is that of a private cluster."""
        self._host, self._table, self._reputations, self._membership = host, table, reputations, membership
        self._on_banned, self._wall_clock = on_banned, wall_clock

    def judge(self, peer: PeerId, judgement: api.Judgement, detail: str) -> None:
        """The learner's judgement of one group."""
        notes = self._table.of(peer)
        if judgement is api.Judgement.USED:
            notes.groups_used += 1
        elif judgement in (api.Judgement.FALSE_REWARD, api.Judgement.MALFORMED):
            notes.groups_rejected += 1
        self.report(peer, Conduct(judgement), detail)

    def report(self, peer: PeerId, conduct: Conduct, detail: str) -> None:
        self._table.known(peer).conduct[conduct.value] += 1
        banned_because = self._reputations.observe(peer, conduct, self._wall_clock())
        if detail:
            log.debug("%s: %s: %s", peer, conduct, detail)
        if banned_because is not None:
            log.warning("banned %s: %s", peer, banned_because)
            self._on_banned(peer, banned_because)

    def report_under_limit(self, peer: PeerId, conduct: Conduct, detail: str) -> None:
        """Where our own limit slows every download, a slow peer is not to blame."""
        if conduct is not Conduct.STALLED:
            self.report(peer, conduct, detail)

    def reputation(self, peer: PeerId) -> float:
        return self._reputations.of(peer, self._wall_clock())

    def is_banned(self, peer: PeerId) -> bool:
        if self._membership is not None and self._membership.is_out(peer):
            return True
        return self._reputations.banned_because(peer, self._wall_clock()) is not None

    def is_of_use(self, peer: PeerId) -> bool:
        """Whether a peer's claims held, or it is heard and most of what it claimed was not wrong."""
        reputation = self.reputation(peer)
        is_heard = self._table.known(peer).is_present(self._wall_clock() - PRESENT_SECONDS)
        return reputation > STRANGERS_STANDING or (is_heard and reputation >= STRANGER_REPUTATION)

    def standing(self, peer: PeerId) -> Standing:
        """Returns whose share of a room that is used up the peer's announcements belong to."""
        if self._reputations.has_held(peer, self._wall_clock()):
            return Standing.PROVEN
        known_wrong = self.reputation(peer) < STRANGER_REPUTATION
        return Standing.STRANGER if peer in self._host.peers() and not known_wrong else Standing.LAST
