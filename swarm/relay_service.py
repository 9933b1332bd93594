"""A member of a swarm that only introduces and relays: ``starling relay`` runs it, in little memory, on any host.

It keeps connections, tells newcomers who is here, forwards gossip, relays for peers that nobody can dial, and in a
private cluster admits members and passes on its documents. It has no learner and no content store: it announces, keeps
and serves no groups and no weights. Its heartbeats say so (phase ``relay``, no model). It keeps ``FURTHER_PLACES`` more
connections than a node that trains, so that as many peers can have a place here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final

import anyio

from protocol import limits
from protocol.errors import ConfigurationError, StarlingError, StorageError
from protocol.identity import NodeKey
from protocol.messages import Announcement, Goodbye, Heartbeat
from swarm import api
from swarm.announcements.gossip import Gossip
from swarm.announcements.own_heartbeats import OwnHeartbeats
from swarm.announcements.pacing import SwarmPacing
from swarm.cluster.member_exchange import MemberExchange
from swarm.cluster.membership import Membership
from swarm.host import Host, PeerId
from swarm.peers.connectivity import watch_connectivity
from swarm.peers.keeping import TRIAL_HEARTBEATS
from swarm.peers.manifest_answers import ManifestAnswers
from swarm.peers.peer_conduct import PeerConduct
from swarm.peers.peer_listing import listed_peers
from swarm.peers.peer_table import PeerTable
from swarm.peers.peering import Peering
from swarm.peers.reachability import Reach
from swarm.peers.reaching import Reaching
from swarm.peers.reputation import ReputationBook
from swarm.settings import ServiceSettings

log = logging.getLogger(__name__)

FURTHER_PLACES: Final = 128  # with those of every node fewer than the connections that a host takes
SAVE_SECONDS: Final = 30.0
REPORT_SECONDS: Final = 10.0  # between two reports of changes at least
GOODBYE_SEND_SECONDS: Final = 0.5  # for the goodbye to leave the machine

Emit = Callable[[str, Mapping[str, object]], None]  # (event, its fields)


class RelayService:
    """Call ``run`` once; while it runs, ``answer`` serves clients concurrently.

    ``emit`` is told ``ready``, ``alone`` and ``connected`` as by a node's swarm process, ``peers`` when their number or
    what is relayed has changed, ``reach`` when it is known from where this peer can be dialled, and ``left``.
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
        home = settings.home_path
        self.host = host
        self.started = anyio.Event()
        self._settings, self._wall_clock, self._emit, self._membership = settings, wall_clock, emit, membership
        self._table = PeerTable()
        self._reputations = ReputationBook(home / "trust.json")
        self._conduct = PeerConduct(
            host, self._table, self._reputations, membership, on_banned=self._on_banned, wall_clock=wall_clock
        )
        self._pacing = SwarmPacing(settings.heartbeat_seconds, heard_since=self._table.heard_since, clock=wall_clock)
        self._heartbeats = OwnHeartbeats(settings.name, settings.software, wall_clock=wall_clock, has_learner=False)
        self.gossip = Gossip(
            host,
            key,
            settings.swarm_id_bytes,
            wall_clock=wall_clock,
            is_banned=self._conduct.is_banned,
            is_member=None if membership is None else lambda peer: membership.refusal(peer) is None,
            allowance=self._pacing.allowance,
        )
        self.gossip.listen(self._on_announcement)
        self.peering = Peering(
            host,
            settings.swarm_id_bytes,
            configured=settings.peers,
            remembered=home / "peers.json",
            random=random,
            on_lan=settings.lan_discovery,
            is_banned=self._conduct.is_banned,
            standing=self._conduct.reputation,
            is_of_use=lambda peer: self.reaching.is_relay(peer) or self._conduct.is_of_use(peer),
            trial_seconds=lambda: TRIAL_HEARTBEATS * self._pacing.heartbeat_seconds(),
            on_refused=membership.on_refused if membership is not None else lambda peer, error: None,
            further_places=FURTHER_PLACES,
        )
        self.reaching = Reaching(
            host, members=self.peering.members, is_dialled=self.peering.is_dialled, on_place=self.peering.tell_soon
        )
        manifest = settings.open_manifest()
        self._manifest = ManifestAnswers(host, manifest) if manifest is not None else None
        self._members = (
            MemberExchange(host, membership, random=random, is_trying=self.peering.is_trying)
            if membership is not None
            else None
        )
        self._started_at_seconds = wall_clock()
        self._leaving, self._goodbye = anyio.Event(), "left"
        self._departed: list[PeerId] = []  # whose goodbye was heard since the last look

    async def run(self) -> None:
        """Runs until ``leave``, or cancelled.

        Raises ``TransportError`` if the port is in use, ``RefusedError`` once this peer is no longer a member of its
        private cluster.
        """
        async with self.host.run():
            for peer in self._reputations.banned(self._wall_clock()):
                self.host.block(peer)
            await self.gossip.start()
            async with anyio.create_task_group() as tasks:
                for duty in (
                    self.peering.run,
                    self.reaching.run,
                    partial(self._heartbeats.run, self._say, host=self.host, pacing=self._pacing),
                    partial(watch_connectivity, self.host, self.peering.alone_because, self._emit),
                    self._save_regularly,
                    self._report_regularly,
                    self._drop_departed,
                    *((self._members.run,) if self._members is not None else ()),
                ):
                    tasks.start_soon(duty)
                self._emit("ready", {"peer": self.host.peer_id, "addresses": list(self.host.addresses())})
                self.started.set()
                await self._leaving.wait()
                await self._say(Goodbye(self._goodbye))
                await anyio.sleep(GOODBYE_SEND_SECONDS)
                tasks.cancel_scope.cancel()
        self._save()
        self._emit("left", {"reason": self._goodbye})

    def leave(self, reason: str) -> None:
        """Says goodbye and ends ``run``."""
        self._goodbye = reason[: limits.REASON_BYTES]
        self._leaving.set()

    async def answer(self, request: api.Request) -> api.Reply:
        """Returns the reply to one request of a client. Raises ``ConfigurationError`` for what takes a learner."""
        match request:
            case api.AskStatus():
                return self.status()
            case api.AskPeers():
                return api.PeerList(
                    listed_peers(
                        self.host,
                        self._table,
                        self._reputations,
                        self.peering.book,
                        refused_offsets=self.gossip.refused_offsets,
                        now_seconds=self._wall_clock(),
                    )
                )
            case api.Decree(kind, document) if self._membership is not None:
                self._membership.take(kind, document)
            case api.Leave(reason):
                self.leave(reason)
            case _:
                raise ConfigurationError("a relay runs here, which neither trains nor keeps blobs: start starling up")
        return api.Done()

    def status(self) -> api.SwarmStatus:
        traffic = self.host.traffic()
        return api.SwarmStatus(
            peer=self.host.peer_id,
            swarm=self._settings.swarm_name,
            swarm_id=self._settings.swarm_id,
            addresses=tuple(self.host.addresses()),
            uptime_seconds=self._wall_clock() - self._started_at_seconds,
            connected_peers=len(self.host.peers()),
            alone_because=self.peering.alone_because(),
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            store_bytes=0,
            accepted=dict(self.gossip.accepted),
            rejected=dict(self.gossip.rejected + self.peering.refusals),
            private=self._settings.private,
            reach=self.reaching.status(),
            has_learner=False,
        )

    def _on_announcement(self, announcement: Announcement) -> None:
        peer = announcement.sender
        match announcement.body:
            case Heartbeat() as heartbeat:
                is_first = self._table.on_heartbeat(announcement, heartbeat, self._wall_clock())
                if is_first is not None:
                    self._pacing.on_heartbeat(is_first=is_first)
            case Goodbye(reason):
                log.info("%s left: %r", peer, reason)
                self._table.leave(peer, announcement.time_seconds)
                self._departed.append(peer)

    async def _drop_departed(self) -> None:
        while True:
            await anyio.sleep(1.0)
            while self._departed:
                await self.peering.depart(self._departed.pop())

    def _on_banned(self, peer: PeerId, because: str) -> None:
        self.peering.ban(peer)
        self._emit("banned", {"peer": peer, "reason": because})

    async def _say(self, body: Heartbeat | Goodbye) -> None:
        try:
            await self.gossip.announce(body)
        except StarlingError as error:
            log.warning("could not announce: %s", error)

    async def _save_regularly(self) -> None:
        while True:
            await anyio.sleep(SAVE_SECONDS)
            self._save()

    def _save(self) -> None:
        try:
            self._reputations.save()
            self.peering.save()
        except StorageError as error:
            log.error("%s", error)

    async def _report_regularly(self) -> None:
        """Reports how many peers are here and what is relayed, if that has changed since the last report."""
        reported, reach = (0, 0, 0), Reach.UNKNOWN.value
        while True:
            await anyio.sleep(REPORT_SECONDS)
            status = self.status()
            counts = (status.connected_peers, status.reach.reservations, status.reach.circuits)
            if counts != reported:
                reported = counts
                fields = {"connected": counts[0], "reservations": counts[1], "circuits": counts[2]}
                self._emit("peers", {**fields, "relayed_bytes": status.reach.relayed_bytes})
            if status.reach.reach != reach:
                reach = status.reach.reach
                self._emit("reach", {"reach": reach, "in_words": status.reach.in_words})
