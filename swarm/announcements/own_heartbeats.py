"""What this node's heartbeats say, and when they are sent: regularly, and at once when peers should know at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import msgspec

from protocol.connections import connections_field
from protocol.messages import RELAYING, Heartbeat
from swarm.announcements.pacing import COUNT_SECONDS, SwarmPacing
from swarm.host import Host
from swarm.peers.claimed_addresses import claims_of

LEARNER_SILENT_SECONDS: Final = 300.0  # after the learner's last beat; heartbeats then say that it is silent
_UNKNOWN = bytes(16)  # family and tokenizer before the learner's first beat, and of a peer that has no learner


class OwnHeartbeats:
    """The learner tells what it does, the owner may pause it, and ``run`` says so to the swarm."""

    def __init__(self, name: str, software: str, *, wall_clock: Callable[[], float], has_learner: bool = True) -> None:
        """Without a learner the heartbeats say that this peer relays, for as long as it runs."""
        phase = "starting" if has_learner else RELAYING
        self._heartbeat = Heartbeat(name, software, "", _UNKNOWN, _UNKNOWN, 0, 0, phase, 0.0, 0, 0, ())
        self._has_learner = has_learner
        self._wall_clock = wall_clock
        self._beaten_at_seconds = wall_clock()
        self._due = anyio.Event()
        self.paused = False

    @property
    def family(self) -> bytes:
        return self._heartbeat.family

    def beat(self, heartbeat: Heartbeat) -> None:
        """Takes the learner's heartbeat. Another model is announced at once."""
        if heartbeat.model != self._heartbeat.model:
            self._due.set()
        self._heartbeat, self._beaten_at_seconds = heartbeat, self._wall_clock()

    def set_paused(self, paused: bool) -> None:
        """Announces a change at once."""
        if paused != self.paused:
            self._due.set()
            self._heartbeat = msgspec.structs.replace(self._heartbeat, phase="starting", tokens_per_second=0.0)
            self._beaten_at_seconds = self._wall_clock()  # the learner has as long to come back as at a start
        self.paused = paused

    def said_now(self) -> Heartbeat:
        """Returns the heartbeat of this moment without our connections and the addresses where we can be dialled."""
        if self.paused:
            return msgspec.structs.replace(self._heartbeat, phase="paused", tokens_per_second=0.0)
        if self._has_learner and self._wall_clock() - self._beaten_at_seconds > LEARNER_SILENT_SECONDS:
            return msgspec.structs.replace(self._heartbeat, phase="learner silent", tokens_per_second=0.0)
        return self._heartbeat

    async def run(self, say: Callable[[Heartbeat], Awaitable[None]], *, host: Host, pacing: SwarmPacing) -> None:
        """Announces heartbeats as often as ``pacing`` allows at each moment, until it is cancelled."""
        while True:
            connected, addresses = connections_field(host.peers()), claims_of(host.addresses(), host.peer_id)
            await say(msgspec.structs.replace(self.said_now(), connected=connected, addresses=addresses))
            said_at_seconds = anyio.current_time()
            while not self._due.is_set():
                left_seconds = said_at_seconds + pacing.heartbeat_seconds() - anyio.current_time()
                if left_seconds <= 0.0:
                    break
                with anyio.move_on_after(min(left_seconds, COUNT_SECONDS)):
                    await self._due.wait()
            self._due = anyio.Event()
