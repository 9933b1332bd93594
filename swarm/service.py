"""One member of a swarm, composed from its parts over any host; ``swarm_process`` runs it as a process.

Guarantees: a judgement of the learner changes the peer's reputation at once; a ban drops the peer's groups, its
connection and its gossip; a peer that says goodbye is forgotten at once; a node that leaves says goodbye. Clock and
randomness are passed in, so that all of it runs in virtual time on the simulated host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from random import Random

import msgspec

from protocol.identity import NodeKey
from protocol.messages import Announcement, Goodbye, RolloutAdvert
from swarm import api
from swarm.announcements.group_sharing import GROUP_BLOB_SECONDS, GroupSharing
from swarm.announcements.state_sharing import StateSharing
from swarm.averaging.weight_averaging import Measure, WeightAveraging, measure_in_thread
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.fetch_places import peers_within
from swarm.blobs.store import ContentStore
from swarm.cluster.membership import Membership
from swarm.donors import DONOR_LIST
from swarm.donors.donor_door import DonorDoor
from swarm.host import Host, PeerId
from swarm.participant import Emit, Participant
from swarm.peers.reaching import Relays
from swarm.router import Router
from swarm.settings import ServiceSettings
from swarm.upkeep import Upkeep

HEARTBEATS_MISSED = 6  # after so many a connected peer is no longer asked to average weights
MAX_FETCH_SECONDS = 3600.0
BLOB_SHARE = 0.9  # of an upload limit, so that announcements and requests do not wait behind blobs


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
        self.host = host
        self.store = ContentStore(
            settings.home_path / "blobs",
            budget_bytes=settings.store_bytes,
            expire_seconds=GROUP_BLOB_SECONDS,
            wall_clock=wall_clock,
        )
        self._settings, self._wall_clock, self._emit = settings, wall_clock, emit
        self._participant = participant = Participant(
            host,
            key,
            settings,
            wall_clock=wall_clock,
            random=random,
            emit=emit,
            membership=membership,
            on_banned=self._forget,
            is_donor=lambda peer: self._donors.is_donor(peer),
            relays=Relays.WHILE_DIALLED if settings.relay else Relays.NEVER,
            router=router,
        )
        self.started, self.leave = participant.started, participant.leave
        self.gossip, self.peering, self.reaching = participant.gossip, participant.peering, participant.reaching
        self.reputations = participant.reputations
        self._table, self._conduct, self._pacing = participant.table, participant.conduct, participant.pacing
        self._heartbeats = participant.heartbeats
        self.gossip.listen(self._on_announcement)
        self._groups, self._states = self._new_groups(), self._new_states()
        self._upkeep = Upkeep(self.store, self._groups, wall_clock=wall_clock)
        self.server, self._fetcher = self._new_server(), self._new_fetcher()
        self._averaging = self._new_averaging(random, measure)
        self._donors = DonorDoor(host, settings.home_path / DONOR_LIST, wall_clock=wall_clock)
        self.carry = self._donors.carry

    def _new_groups(self) -> GroupSharing:
        return GroupSharing(
            self.store,
            self._table,
            self.gossip.announce,
            pacing=self._pacing,
            standing=self._conduct.standing,
            is_connected=lambda: bool(self.host.peers()),
            wall_clock=self._wall_clock,
        )

    def _new_states(self) -> StateSharing:
        say = self._participant.say
        return StateSharing(self.store, say, wall_clock=self._wall_clock, reputation=self.reputations.of)

    def _new_server(self) -> BlobServer:
        return BlobServer(
            self.host,
            self.store,
            upload_bytes_per_second=BLOB_SHARE * self._settings.upload_bytes_per_second,
            report=self._conduct.report,
            on_sent=self._on_blob_given,
            standing=self._conduct.reputation,
        )

    def _new_fetcher(self) -> Fetcher:
        download = self._settings.download_bytes_per_second
        return Fetcher(
            self.host,
            self.store,
            reach=self.peering.reach,
            report=self._conduct.report if not download else self._conduct.report_under_limit,
            most_peers=peers_within(download),
        )

    def _new_averaging(self, random: Random, measure: Measure) -> WeightAveraging:
        return WeightAveraging(
            self.host,
            self.store,
            self._fetcher,
            self._table,
            report=self._conduct.report,
            candidates=self._averaging_candidates,
            is_dialled=self.peering.is_dialled,
            connected_seconds=self.peering.connected_seconds,
            store_bytes=self._settings.store_bytes,
            wall_clock=self._wall_clock,
            random=random,
            measure=measure,
        )

    async def run(self) -> None:
        """Runs until ``leave``, or cancelled. Raises the errors of ``Participant.run``."""
        with closing(self.store):
            await self._participant.run(self._states.run, self._upkeep.run, self._upkeep.clear_flat_folder)
        self._emit("left", {"reason": self._participant.goodbye})

    async def answer(self, request: api.Request) -> api.Reply:
        """Returns the reply to one request of a client. Raises ``StarlingError`` if it cannot be served."""
        reply = await self._participant.answer(request)
        if reply is not None:
            return reply
        match request:
            case api.AskStatus():
                return self._status()
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
                self._donors.set_paused(paused)
            case api.RaiseStore(store_bytes):
                self.store.raise_budget(store_bytes)
            case api.AskDonors(terms):
                return self._donors.offers(terms)
            case api.UseDonor(peer):
                return self._donors.take(peer)
            case api.DropDonor(peer, because):
                self._donors.drop(peer, because)
            case api.CutOffDonor(peer):
                self._donors.cut_off(peer)
            case api.Judge(peer, _, judgement, detail):
                self._conduct.judge(peer, judgement, detail)
        return api.Done()

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

    def _forget(self, peer: PeerId) -> None:
        self._groups.forget(peer)
        self._states.forget(peer)

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
        self._states.on_announcement(announcement, family=self._heartbeats.family)
        match announcement.body:
            case RolloutAdvert() as advert:
                self._groups.on_advert(announcement.sender, advert)
            case Goodbye():
                self._forget(announcement.sender)

    def _status(self) -> api.SwarmStatus:
        status = self._participant.status()
        return msgspec.structs.replace(
            status,
            store_bytes=self.store.total_bytes(),
            rejected=dict(Counter(status.rejected) + self.server.refused),
            groups_announced=self._groups.announced,
            groups_fetched=self._groups.fetched,
            adverts_held_back=self._pacing.adverts_held_back,
            averaging=self._averaging.status(),
        )
