"""What the swarm process last answered, and what follows from it: who came, who left, whether the clock is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from node.api.answers import escaped_swarm_status, peers_answer
from node.api.presence import Presence
from node.api.types import PeersAnswer
from node.events import NamedPeer, PeersChanged
from node.supervision.watching.clock_watch import ClockWatch
from protocol.errors import TransportError
from swarm.api import SwarmStatus
from swarm.client import SwarmClient

FRESH_HEARTBEAT_SECONDS: Final = 60.0  # an older one says nothing about a peer's clock now


class SwarmWatch:
    """Not for concurrent use."""

    def __init__(self) -> None:
        self.status: SwarmStatus | None = None  # None while the swarm process does not answer
        self.peers = PeersAnswer(())  # kept while it does not answer
        self._presence = Presence()
        self._clock_watch = ClockWatch()

    async def look(
        self, client: SwarmClient, *, is_paused: Callable[[], bool], outcomes_of: Callable[[str], dict[str, int]]
    ) -> bool:
        """Asks the swarm process once, in a thread, and tells it when the node pauses or trains again. Returns whether
        it answered. ``outcomes_of``: of the groups of a peer, counted."""
        try:
            self.status = escaped_swarm_status(await asyncio.to_thread(client.status))
            paused = is_paused()
            if self.status.paused != paused:
                await asyncio.to_thread(client.set_paused, paused)
            seen = await asyncio.to_thread(client.peers)
            outcomes = [outcomes_of(peer.peer) for peer in seen]
            self.peers = await asyncio.to_thread(peers_answer, seen, outcomes)
        except TransportError:  # not up yet, or restarting
            self.status = None
            return False
        return True

    def peers_changed(self, now_seconds: float, rounds_done: int) -> PeersChanged | None:
        """Returns who came and who left, as ``Presence.look`` does; called after a look that was answered."""
        return self._presence.look(now_seconds, rounds_done, self.peers.peers)

    @property
    def renamed(self) -> Sequence[NamedPeer]:
        """Present peers that ``peers_changed`` found under another name or model."""
        return self._presence.renamed

    @property
    def clock(self) -> str | None:
        """What is wrong with this machine's clock, in words."""
        return self._clock_watch.told.message if self._clock_watch.told is not None else None

    def clock_note(self) -> str | None:
        """Judges this machine's clock once a look; returns a note where the verdict is news."""
        offsets = [
            peer.clock_offset_seconds
            for peer in self.peers.peers
            if peer.connected
            and (peer.heartbeat_age_seconds or 0.0) < FRESH_HEARTBEAT_SECONDS
            and peer.clock_offset_seconds is not None
        ]
        if not self._clock_watch.look(offsets):
            return None
        told = self._clock_watch.told
        return f"CLOCK: {told.message}. To do: {told.remedy}." if told else "The clocks agree again."
