"""One member of a swarm, composed from its parts over any host; ``swarm_process`` runs it as a process.

Guarantees: a judgement of the learner changes the peer's reputation at once; a ban drops the peer's groups, its
connection and its gossip; a peer that says goodbye is forgotten at once; a node that leaves says goodbye. Clock and
randomness are passed in, so that all of it runs in virtual time on the simulated host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from random import Random

import anyio
from anyio.abc import TaskGroup

from protocol import limits
from protocol.errors import ConfigurationError, StarlingError
from protocol.identity import NodeKey
from protocol.messages import Announcement, Goodbye, Heartbeat, RolloutAdvert, StateAdvert
from swarm import api
from swarm.announcements.gossip import Gossip
from swarm.announcements.group_sharing import GROUP_BLOB_SECONDS, GroupSharing
from swarm.announcements.own_heartbeats import OwnHeartbeats
from swarm.announcements.pacing import SwarmPacing
from swarm.announcements.state_sharing import StateSharing
from swarm.averaging.weight_averaging import Measure, WeightAveraging, measure_in_thread
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.fetch_places import peers_within
from swarm.blobs.store import ContentStore
from swarm.cluster.member_exchange import MemberExchange
from swarm.cluster.membership import Membership
from swarm.host import Host, PeerId
from swarm.peers.claimed_addresses import claimed_addresses
from swarm.peers.connectivity import watch_connectivity
from swarm.peers.keeping import TRIAL_HEARTBEATS
from swarm.peers.manifest_answers import ManifestAnswers
from swarm.peers.peer_conduct import PeerConduct
from swarm.peers.peer_listing import listed_peers
from swarm.peers.peer_table import PeerTable
from swarm.peers.peering import Peering
from swarm.peers.reaching import Reaching
from swarm.peers.reputation import ReputationBook
from swarm.router import Router
from swarm.settings import ServiceSettings
from swarm.upkeep import Upkeep

log = logging.getLogger(__name__)

GOODBYE_SEND_SECONDS = 0.5  # for the goodbye to leave the machine
HEARTBEATS_MISSED = 6  # after so many a connected peer is no longer asked to average weights
MAX_FETCH_SECONDS = 3600.0
BLOB_SHARE = 0.9  # of an upload limit, so that announcements and requests do not wait behind blobs

Emit = Callable[[str, Mapping[str, object]], None]  # (event, its fields)


class SwarmService:
    """Call ``run`` once; while it runs, ``answer`` serves clients concurrently."""

    def __init__(
        self,
        host: Host,
        key: NodeKey,
        settings: ServiceSettings,
        *,
        wall_clock: Callable[[], float],
        random: Random,
        emit: Emit = lambda event, fields: None,
        measure: Measure = measure_in_thread,
        membership: Membership | None = None,
        router: Router | None = None,
    ) -> None:
        home = settings.home_path
        self.started = anyio.Event()
        self.host = host
        self.store = ContentStore(
            home / "blobs",
            budget_bytes=settings.store_bytes,
            expire_seconds=GROUP_BLOB_SECONDS,
            wall_clock=wall_clock,
        )
        self.reputations = ReputationBook(home / "trust.json")  # another name would lift the bans kept on disk
        self._settings = settings
        self._wall_clock = wall_clock
        self._emit = emit
        self._table = PeerTable()
        self._conduct = PeerConduct(
            host, self._table, self.reputations, membership, on_banned=self._on_banned, wall_clock=wall_clock
        )
        self._pacing = SwarmPacing(settings.heartbeat_seconds, heard_since=self._table.heard_since, clock=wall_clock)
        self._heartbeats = OwnHeartbeats(settings.name, settings.software, wall_clock=wall_clock)
        self._started_at_seconds = wall_clock()
        self._leaving = anyio.Event()
        self._goodbye = "left"
        self._tasks: TaskGroup | None = None
        self._membership = membership
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
        self._groups = GroupSharing(
            self.store,
            self._table,
            self.gossip.announce,
            pacing=self._pacing,
            standing=self._conduct.standing,
            wall_clock=wall_clock,
        )
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
            claimed=lambda peer: claimed_addresses(peer, self._table.known(peer).heartbeat),
            on_refused=membership.on_refused if membership is not None else lambda peer, error: None,
        )
        manifest = settings.open_manifest()
        self._manifest = ManifestAnswers(host, manifest) if manifest is not None else None
        self.reaching = Reaching(
            host,
            members=self.peering.members,
            is_dialled=self.peering.is_dialled,
            on_place=self.peering.tell_soon,
            relays=settings.relay,
            router=router,
        )
        self._upkeep = Upkeep(self.store, self._groups, self.reputations, self.peering, wall_clock=wall_clock)
        self._members = (
            MemberExchange(host, membership, random=random, is_trying=self.peering.is_trying)
            if membership is not None
            else None
        )
        self.server = BlobServer(
            host,
            self.store,
            upload_bytes_per_second=BLOB_SHARE * settings.upload_bytes_per_second,
            report=self._conduct.report,
            on_sent=self._on_blob_given,
            standing=self._conduct.reputation,
        )
        self._states = StateSharing(self.store, self._say, wall_clock=wall_clock, reputation=self.reputations.of)
        download = settings.download_bytes_per_second
        self._fetcher = Fetcher(
            host,
            self.store,
            reach=self.peering.reach,
            report=self._conduct.report if not download else self._conduct.report_under_limit,
            most_peers=peers_within(download),
        )
        self._averaging = WeightAveraging(
            host,
            self.store,
            self._fetcher,
            self._table,
            report=self._conduct.report,
            candidates=self._averaging_candidates,
            connected_seconds=self.peering.connected_seconds,
            store_bytes=settings.store_bytes,
            wall_clock=wall_clock,
            random=random,
            measure=measure,
        )

    async def run(self) -> None:
        """Runs until ``leave``, or cancelled.

        Raises ``TransportError`` if the port is in use, ``RefusedError`` once this node is no longer a member of its
        private cluster.
        """
        with closing(self.store):
            await self._run_on_host()
        self._emit("left", {"reason": self._goodbye})

    async def _run_on_host(self) -> None:
        async with self.host.run():
            for peer in self.reputations.banned(self._wall_clock()):
                self.host.block(peer)
            await self.gossip.start()
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                try:
                    await self._run_duties(tasks)
                finally:
                    self._tasks = None  # before it closes: other nodes' goodbyes may arrive until the host is down
                tasks.cancel_scope.cancel()
        self._upkeep.save()

    async def _run_duties(self, tasks: TaskGroup) -> None:
        """Starts everything that a node does by itself, and returns once it has left and said goodbye."""
        duties = (
            self.peering.run,
            self.reaching.run,
            partial(self._heartbeats.run, self._say, host=self.host, pacing=self._pacing),
            self._states.run,
            partial(watch_connectivity, self.host, self.peering.alone_because, self._emit),
            self._upkeep.run,
            self._upkeep.clear_flat_folder,
        )
        for duty in duties:
            tasks.start_soon(duty)
        if self._members is not None:
            tasks.start_soon(self._members.run)
        self._emit("ready", {"peer": self.host.peer_id, "addresses": list(self.host.addresses())})
        self.started.set()
        await self._leaving.wait()
        await self._say(Goodbye(self._goodbye))
        await anyio.sleep(GOODBYE_SEND_SECONDS)

    def leave(self, reason: str) -> None:
        """Says goodbye and ends ``run``."""
        self._goodbye = reason[: limits.REASON_BYTES]
        self._leaving.set()

    async def answer(self, request: api.Request) -> api.Reply:
        """Returns the reply to one request of a client. Raises ``StarlingError`` if it cannot be served."""
        match request:
            case api.AskStatus():
                return self._status()
            case api.AskPeers():
                return api.PeerList(
                    listed_peers(
                        self.host,
                        self._table,
                        self.reputations,
                        self.peering.book,
                        refused_offsets=self.gossip.refused_offsets,
                        now_seconds=self._wall_clock(),
                    )
                )
            case api.Share():
                await self._groups.share(request)
            case api.AskSeenGroups():
                return self._groups.seen(request)
            case api.Fetch():
                return await self._fetch(request)
            case api.AskProgress(blobs):
                return api.FetchProgress(tuple(map(self._fetcher.here_bytes, blobs)))
            case api.ShareState():
                return self._states.share(request)
            case api.AskStates():
                return self._states.seen(request)
            case api.Average():
                return await self._averaging.average(request)
            case api.Beat(heartbeat):
                self._heartbeats.beat(heartbeat)
            case api.SetPaused(paused):
                self._heartbeats.set_paused(paused)
            case api.RaiseStore(store_bytes):
                self.store.raise_budget(store_bytes)
            case api.Judge(peer, _, judgement, detail):
                self._conduct.judge(peer, judgement, detail)
            case api.Decree():
                self._decree(request)
            case api.Leave(reason):
                self.leave(reason)
        return api.Done()

    def _decree(self, request: api.Decree) -> None:
        if self._membership is None:
            raise ConfigurationError("this node is not in a private cluster: the document is for another node")
        self._membership.take(request.kind, request.document)

    async def _fetch(self, request: api.Fetch) -> api.FetchedList:
        wanted = []
        for each in request.wanted:
            peers = [p for p in each.peers if not self._conduct.is_banned(p)]
            peers.sort(key=lambda peer: -self._conduct.reputation(peer))
            wanted.append(api.Wanted(each.blob, each.size, tuple(peers)))
        deadline_seconds = min(request.deadline_seconds, MAX_FETCH_SECONDS)
        return api.FetchedList(tuple(await self._fetcher.fetch(wanted, deadline_seconds=deadline_seconds)))

    def _on_blob_given(self, peer: PeerId, blob: bytes) -> None:
        self._averaging.on_given(peer, blob)
        self._groups.on_given(peer, blob)

    def _on_banned(self, peer: PeerId, because: str) -> None:
        self._groups.forget(peer)
        self._states.forget(peer)
        self.peering.ban(peer)
        self._emit("banned", {"peer": peer, "reason": because})
        self._upkeep.save()

    def _averaging_candidates(self, family: bytes) -> list[PeerId]:
        """Returns the peers, connected directly, whose latest heartbeat is fresh and names this family."""
        oldest_seconds = self._wall_clock() - HEARTBEATS_MISSED * self._pacing.heartbeat_seconds()
        peers = []
        for peer in self.host.peers():
            notes = self._table.known(peer)
            of_family = notes.heartbeat is not None and notes.heartbeat.family == family
            is_usable = not self._conduct.is_banned(peer) and not self.host.is_relayed(peer)
            if of_family and notes.is_present(oldest_seconds) and is_usable:
                peers.append(peer)
        return peers

    def _on_announcement(self, announcement: Announcement) -> None:
        peer = announcement.sender
        self._states.on_announcement(announcement, family=self._heartbeats.family)
        match announcement.body:
            case Heartbeat() as heartbeat:
                is_first = self._table.on_heartbeat(announcement, heartbeat, self._wall_clock())
                if is_first is not None:
                    self._pacing.on_heartbeat(is_first=is_first)
            case RolloutAdvert() as advert:
                self._groups.on_advert(peer, advert)
            case Goodbye(reason):
                log.info("%s left: %r", peer, reason)
                self._groups.forget(peer)
                self._states.forget(peer)
                self._table.leave(peer, announcement.time_seconds)
                if self._tasks is not None:
                    self._tasks.start_soon(self.peering.depart, peer)

    async def _say(self, body: Heartbeat | StateAdvert | Goodbye) -> None:
        try:
            await self.gossip.announce(body)
        except StarlingError as error:
            log.warning("could not announce: %s", error)

    def _status(self) -> api.SwarmStatus:
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
            store_bytes=self.store.total_bytes(),
            accepted=dict(self.gossip.accepted),
            rejected=dict(self.gossip.rejected + self.server.refused + self.peering.refusals),
            adverts_held_back=self._pacing.adverts_held_back,
            averaging=self._averaging.status(),
            private=self._settings.private,
            paused=self._heartbeats.paused,
            reach=self.reaching.status(),
        )
