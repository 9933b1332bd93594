"""A member of a swarm that only introduces and relays: ``starling relay`` runs it, in little memory, on any host.

It keeps connections, tells newcomers who is here, forwards gossip, relays for peers that nobody can dial, and in a
private cluster admits members and passes on its documents. It has no learner and no content store: it announces, keeps
and serves no groups and no weights. Its heartbeats say so (phase ``relay``, no model). It keeps ``FURTHER_PLACES`` more
connections than a node that trains, so that as many peers can have a place here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import anyio

from protocol.identity import NodeKey
from swarm import api
from swarm.cluster.membership import Membership
from swarm.host import Host
from swarm.participant import Emit, Participant
from swarm.peers.reachability import Reach
from swarm.peers.reaching import Relays
from swarm.settings import ServiceSettings

FURTHER_PLACES: Final = 128  # with those of every node fewer than the connections that a host takes
REPORT_SECONDS: Final = 10.0  # between two reports of changes at least


class RelayService:
    """Call ``run`` once; while it runs, ``answer`` serves clients concurrently.

    ``emit`` is called with the events of ``Participant``, ``peers`` when their number or what is relayed has changed,
    ``reach`` when it is known from where this peer can be dialled, and ``left``.
    """

    def __init__(
        self,
        host: Host,
        key: NodeKey,
        settings: ServiceSettings,
        *,
        wall_clock: Callable[[], float],
        random: Random,
        emit: Emit = lambda event, fields: None,
        membership: Membership | None = None,
    ) -> None:
        self._emit = emit
        self._participant = Participant(
            host,
            key,
            settings,
            wall_clock=wall_clock,
            random=random,
            emit=emit,
            membership=membership,
            has_learner=False,
            further_places=FURTHER_PLACES,
            relays=Relays.ALWAYS,
        )
        self.host, self.started, self.leave = host, self._participant.started, self._participant.leave

    async def run(self) -> None:
        """Runs until ``leave``, or cancelled. Raises the errors of ``Participant.run``."""
        await self._participant.run(self._report_regularly)
        self._emit("left", {"reason": self._participant.goodbye})

    async def answer(self, request: api.Request) -> api.Reply:
        """Returns the reply to one request of a client. Raises ``ConfigurationError`` for what takes a learner."""
        return await self._participant.answer_without_learner(request)

    async def _report_regularly(self) -> None:
        """Reports how many peers are here and what is relayed, if that has changed since the last report."""
        reported, reach = (0, 0, 0), Reach.UNKNOWN.value
        while True:
            await anyio.sleep(REPORT_SECONDS)
            status = self._participant.status()
            counts = (status.connected_peers, status.reach.reservations, status.reach.circuits)
            if counts != reported:
                reported = counts
                fields = {"connected": counts[0], "reservations": counts[1], "circuits": counts[2]}
                self._emit("peers", {**fields, "relayed_bytes": status.reach.relayed_bytes})
            if status.reach.reach != reach:
                reach = status.reach.reach
                self._emit("reach", {"reach": reach, "in_words": status.reach.in_words})
