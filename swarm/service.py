"""One member of a swarm, composed from its parts over any host; ``swarm_process`` runs it as a process.

Guarantees: a judgement of the learner changes the peer's reputation at once; a ban drops the peer's groups, its
connection and its gossip; a peer that says goodbye is forgotten at once; a node that leaves says goodbye. Clock and
randomness are passed in, so that all of it runs in virtual time on the simulated host.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from random import Random

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from protocol import limits
from protocol.connections import connections_field
from protocol.errors import ConfigurationError, RefusedError, StarlingError, StorageError
from protocol.identity import NodeKey
from protocol.limits import CLOCK_WINDOW_SECONDS
from protocol.messages import Announcement, Goodbye, Heartbeat, RolloutAdvert, StateAdvert
from swarm import api
from swarm.announcements.crowding import Standing
from swarm.announcements.gossip import Gossip, split_adverts
from swarm.announcements.group_pool import AGE_SECONDS, GroupPool
from swarm.announcements.pacing import PRESENT_SECONDS, SwarmPacing
from swarm.announcements.state_sharing import StateSharing
from swarm.averaging.weight_averaging import Measure, WeightAveraging, measure_in_thread
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.fetch_places import peers_within
from swarm.blobs.incoming import clear_flat_folder, flat_folder
from swarm.blobs.store import ContentStore
from swarm.cluster.member_exchange import MemberExchange
from swarm.cluster.membership import Membership
from swarm.host import Host, PeerId
from swarm.peers.keeping import STRANGERS_STANDING, TRIAL_HEARTBEATS
from swarm.peers.peer_listing import listed_peers
from swarm.peers.peer_table import PeerTable
from swarm.peers.peering import Peering
from swarm.peers.reputation import Conduct, ReputationBook
from swarm.settings import ServiceSettings

log = logging.getLogger(__name__)

MAINTENANCE_SECONDS = 30.0
CONNECTIVITY_CHECK_SECONDS = 2.0
GOODBYE_SEND_SECONDS = 0.5  # for the goodbye to leave the machine
LEARNER_SILENT_SECONDS = 300.0  # after the learner's last beat; heartbeats then say that it is silent
GROUP_BLOB_SECONDS = AGE_SECONDS + CLOCK_WINDOW_SECONDS  # after its last use no peer has its advert any more
HEARTBEATS_MISSED = 6  # after so many a connected peer is no longer asked to average weights
OWN_BLOBS_REMEMBERED = 4096
MAX_FETCH_SECONDS = 3600.0
STRANGER_REPUTATION = 0.4  # below it more was wrong than right
BLOB_SHARE = 0.9  # of an upload limit, so that announcements and requests do not wait behind blobs
_UNKNOWN = bytes(16)  # family and tokenizer before the learner's first beat

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
        self._groups = GroupPool(self._standing)
        self._table = PeerTable()
        self._pacing = SwarmPacing(settings.heartbeat_seconds, heard_since=self._table.heard_since, clock=wall_clock)
        self._own_blobs: OrderedDict[bytes, None] = OrderedDict()
        self._heartbeat = Heartbeat(
            settings.name, settings.software, "", _UNKNOWN, _UNKNOWN, 0, 0, "starting", 0.0, 0, 0, ()
        )
        self._beaten_at_seconds = wall_clock()
        self._started_at_seconds = wall_clock()
        self._paused = False
        self._heartbeat_due = anyio.Event()  # the model changed, which peers should hear at once
        self._leaving = anyio.Event()
        self._goodbye = "left"
        self._tasks: TaskGroup | None = None
        self._membership = membership
        self.gossip = Gossip(
            host,
            key,
            settings.swarm_id_bytes,
            wall_clock=wall_clock,
            is_banned=self._is_banned,
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
            is_banned=self._is_banned,
            standing=lambda peer: self.reputations.of(peer, wall_clock()),
            is_of_use=self._is_of_use,
            trial_seconds=lambda: TRIAL_HEARTBEATS * self._pacing.heartbeat_seconds(),
            on_refused=membership.on_refused if membership is not None else lambda peer, error: None,
        )
        self._members = (
            MemberExchange(host, membership, random=random, is_trying=self.peering.is_trying)
            if membership is not None
            else None
        )
        self.server = BlobServer(
            host,
            self.store,
            upload_bytes_per_second=BLOB_SHARE * settings.upload_bytes_per_second,
            report=self._on_conduct,
            on_sent=self._on_blob_given,
            standing=lambda peer: self.reputations.of(peer, wall_clock()),
        )
        self._states = StateSharing(self.store, self._say, wall_clock=wall_clock, reputation=self.reputations.of)
        download = settings.download_bytes_per_second
        self._fetcher = Fetcher(
            host,
            self.store,
            reach=self.peering.reach,
            report=self._on_conduct if not download else self._on_conduct_under_limit,
            most_peers=peers_within(download),
        )
        self._averaging = WeightAveraging(
            host,
            self.store,
            self._fetcher,
            self._table,
            report=self._on_conduct,
            candidates=self._averaging_candidates,
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
        self._save()

    async def _run_duties(self, tasks: TaskGroup) -> None:
        """Starts everything that a node does by itself, and returns once it has left and said goodbye."""
        duties = (
            self.peering.run,
            self._beat_regularly,
            self._states.run,
            self._watch_connectivity,
            self._maintain,
            self._clear_flat_folder,
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
                await self._share(request)
            case api.AskSeenGroups(after, limit):
                return api.SeenGroups(tuple(self._groups.after(after, limit, self._wall_clock())))
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
                if heartbeat.model != self._heartbeat.model:
                    self._heartbeat_due.set()
                self._heartbeat, self._beaten_at_seconds = heartbeat, self._wall_clock()
            case api.SetPaused(paused):
                if paused != self._paused:
                    self._heartbeat_due.set()
                    self._heartbeat = msgspec.structs.replace(self._heartbeat, phase="starting", tokens_per_second=0.0)
                    self._beaten_at_seconds = self._wall_clock()  # the learner has as long to come back as at a start
                self._paused = paused
            case api.RaiseStore(store_bytes):
                self.store.raise_budget(store_bytes)
            case api.Judge(peer, _, judgement, detail):
                self._judge(peer, judgement, detail)
            case api.Decree():
                self._decree(request)
            case api.Leave(reason):
                self.leave(reason)
        return api.Done()

    def _decree(self, request: api.Decree) -> None:
        if self._membership is None:
            raise ConfigurationError("this node is not in a private cluster: the document is for another node")
        take = self._membership.take_revocations if request.kind == "revocations" else self._membership.take_key_change
        refused = take(request.document)
        if refused is not None:
            raise RefusedError(refused.message, refused.reason)

    async def _share(self, request: api.Share) -> None:
        for group in request.groups:
            self.store.take_over(group.blob)
            self._own_blobs[group.blob] = None
            if len(self._own_blobs) > OWN_BLOBS_REMEMBERED:
                self._own_blobs.popitem(last=False)
        for advert in split_adverts(request.family, request.tokenizer, request.policy_version, request.groups):
            if self._pacing.may_advertise():
                await self.gossip.announce(advert)

    async def _fetch(self, request: api.Fetch) -> api.FetchedList:
        wanted = []
        for each in request.wanted:
            peers = [p for p in each.peers if not self._is_banned(p)]
            peers.sort(key=lambda peer: -self.reputations.of(peer, self._wall_clock()))
            wanted.append(api.Wanted(each.blob, each.size, tuple(peers)))
        deadline_seconds = min(request.deadline_seconds, MAX_FETCH_SECONDS)
        return api.FetchedList(tuple(await self._fetcher.fetch(wanted, deadline_seconds=deadline_seconds)))

    def _judge(self, peer: PeerId, judgement: api.Judgement, detail: str) -> None:
        notes = self._table.of(peer)
        if judgement is api.Judgement.USED:
            notes.groups_used += 1
        elif judgement in (api.Judgement.FALSE_REWARD, api.Judgement.MALFORMED):
            notes.groups_rejected += 1
        self._on_conduct(peer, Conduct(judgement), detail)

    def _on_blob_given(self, peer: PeerId, blob: bytes) -> None:
        self._averaging.on_given(peer, blob)
        if blob in self._own_blobs:
            self._table.known(peer).groups_given += 1

    def _on_conduct(self, peer: PeerId, conduct: Conduct, detail: str) -> None:
        self._table.known(peer).conduct[conduct.value] += 1
        banned_because = self.reputations.observe(peer, conduct, self._wall_clock())
        if detail:
            log.debug("%s: %s: %s", peer, conduct, detail)
        if banned_because is not None:
            log.warning("banned %s: %s", peer, banned_because)
            self._groups.forget(peer)
            self._states.forget(peer)
            self.peering.ban(peer)
            self._emit("banned", {"peer": peer, "reason": banned_because})
            self._save()

    def _on_conduct_under_limit(self, peer: PeerId, conduct: Conduct, detail: str) -> None:
        """Where our own limit slows every download, a slow peer is not to blame."""
        if conduct is not Conduct.STALLED:
            self._on_conduct(peer, conduct, detail)

    def _averaging_candidates(self, family: bytes) -> list[PeerId]:
        """Returns the connected peers whose latest heartbeat is fresh and names this family."""
        oldest_seconds = self._wall_clock() - HEARTBEATS_MISSED * self._pacing.heartbeat_seconds()
        peers = []
        for peer in self.host.peers():
            notes = self._table.known(peer)
            of_family = notes.heartbeat is not None and notes.heartbeat.family == family
            if of_family and notes.is_present(oldest_seconds) and not self._is_banned(peer):
                peers.append(peer)
        return peers

    def _is_banned(self, peer: PeerId) -> bool:
        if self._membership is not None and self._membership.is_out(peer):
            return True
        return self.reputations.banned_because(peer, self._wall_clock()) is not None

    def _is_of_use(self, peer: PeerId) -> bool:
        """Whether a peer's claims held, or it is heard and most of what it claimed was not wrong."""
        now_seconds = self._wall_clock()
        standing, notes = self.reputations.of(peer, now_seconds), self._table.known(peer)
        is_heard = notes.is_present(now_seconds - PRESENT_SECONDS)
        return standing > STRANGERS_STANDING or (is_heard and standing >= STRANGER_REPUTATION)

    def _standing(self, peer: PeerId) -> Standing:
        if self.reputations.has_held(peer, self._wall_clock()):
            return Standing.PROVEN
        known_wrong = self.reputations.of(peer, self._wall_clock()) < STRANGER_REPUTATION
        return Standing.STRANGER if peer in self.host.peers() and not known_wrong else Standing.LAST

    def _on_announcement(self, announcement: Announcement) -> None:
        peer, now_seconds = announcement.sender, self._wall_clock()
        self._states.on_announcement(announcement, family=self._heartbeat.family)
        match announcement.body:
            case Heartbeat() as heartbeat:
                notes = self._table.of(peer)
                if notes.is_news(announcement.sequence, announcement.time_seconds):
                    notes.heartbeat, notes.heartbeat_at_seconds = heartbeat, now_seconds
                    notes.clock_offset_seconds = announcement.time_seconds - now_seconds
                    notes.heartbeat_sequence, notes.has_left = announcement.sequence, False
            case RolloutAdvert() as advert:
                foreign = tuple(g for g in advert.groups if g.blob not in self._own_blobs)
                if foreign:
                    fresh = RolloutAdvert(advert.family, advert.tokenizer, advert.policy_version, foreign)
                    self._table.of(peer).groups_received += self._groups.add(peer, fresh, now_seconds)
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

    async def _beat_regularly(self) -> None:
        while True:
            silent_seconds = self._wall_clock() - self._beaten_at_seconds
            heartbeat = self._heartbeat
            if self._paused:
                heartbeat = msgspec.structs.replace(heartbeat, phase="paused", tokens_per_second=0.0)
            elif silent_seconds > LEARNER_SILENT_SECONDS:
                heartbeat = msgspec.structs.replace(heartbeat, phase="learner silent", tokens_per_second=0.0)
            await self._say(msgspec.structs.replace(heartbeat, connected=connections_field(self.host.peers())))
            with anyio.move_on_after(self._pacing.heartbeat_seconds()):
                await self._heartbeat_due.wait()
            self._heartbeat_due = anyio.Event()

    async def _watch_connectivity(self) -> None:
        """Reports every change between connected and alone: a node must not be alone without saying so."""
        was_alone: bool | None = None
        while True:
            await anyio.sleep(CONNECTIVITY_CHECK_SECONDS)
            because = self.peering.alone_because()
            if (because is not None) == was_alone:
                continue
            was_alone = because is not None
            if because is not None:
                log.warning("alone: %s", because)
                self._emit("alone", {"because": because})
            else:
                log.info("connected to %d peers", len(self.host.peers()))
                self._emit("connected", {"peers": list(self.host.peers())})

    async def _maintain(self) -> None:
        while True:
            await anyio.sleep(MAINTENANCE_SECONDS)
            while self.store.tend():
                await anyio.lowlevel.checkpoint()
            self._groups.expire(self._wall_clock())
            self._groups.regrade()
            self._save()

    async def _clear_flat_folder(self) -> None:
        """Empties what an older version left: up to a million files, which takes minutes."""
        if flat_folder(self.store.directory).exists():
            before_seconds = self._wall_clock() - GROUP_BLOB_SECONDS
            clear = partial(clear_flat_folder, self.store.directory, before_seconds=before_seconds)
            await anyio.to_thread.run_sync(clear, abandon_on_cancel=True)

    def _save(self) -> None:
        try:
            self.reputations.save()
            self.peering.save()
        except StorageError as error:
            log.error("%s", error)

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
            paused=self._paused,
        )
