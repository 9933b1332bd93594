"""What every participant of a swarm has, whether it learns or only introduces: its place among the peers.

It keeps connections and the reputations of peers, hears and sends announcements, finds out from where it can be
dialled, admits members of a private cluster, tells newcomers of an open swarm which one it is, and says goodbye.
``service`` adds a learner, content and averaging; ``relay_service`` adds reports alone.

Guarantees: a ban blocks the peer and is kept on disk; a peer that says goodbye is forgotten at once; a participant that
leaves says goodbye.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from protocol import limits
from protocol.errors import ConfigurationError, StarlingError, StorageError
from protocol.identity import NodeKey
from protocol.manifest import Manifest
from protocol.messages import Announcement, Goodbye, Heartbeat, StateAdvert
from swarm import api
from swarm.announcements.gossip import Gossip
from swarm.announcements.own_heartbeats import OwnHeartbeats
from swarm.announcements.pacing import SwarmPacing
from swarm.cluster.letter_exchange import LetterExchange
from swarm.cluster.member_exchange import MemberExchange
from swarm.cluster.membership import Membership
from swarm.host import Host, PeerId
from swarm.kept_port import keep_listening_port
from swarm.peers.claimed_addresses import claimed_addresses
from swarm.peers.connectivity import watch_connectivity
from swarm.peers.keeping import TRIAL_HEARTBEATS
from swarm.peers.manifest_answers import ManifestAnswers
from swarm.peers.peer_conduct import PeerConduct
from swarm.peers.peer_listing import listed_peers
from swarm.peers.peer_table import PeerTable
from swarm.peers.peering import Peering
from swarm.peers.reaching import Reaching, Relays
from swarm.peers.reputation import ReputationBook
from swarm.router import Router
from swarm.settings import ServiceSettings

log = logging.getLogger(__name__)

GOODBYE_SECONDS: Final = 2.0  # at most, for peers to read the goodbye; one that has read it disconnects
GOODBYE_LOOK_SECONDS: Final = 0.02
SAVE_SECONDS: Final = 30.0

Emit = Callable[[str, Mapping[str, object]], None]  # (event, its fields)
Duty = Callable[[], Coroutine[Any, Any, object]]


class Participant:
    """Call ``run`` once. ``on_banned`` is called with each peer that is banned; ``emit`` is called with ``ready``,
    ``alone``, ``connected`` and ``banned``."""

    def __init__(
        self,
        host: Host,
        key: NodeKey,
        settings: ServiceSettings,
        *,
        wall_clock: Callable[[], float],
        random: Random,
        emit: Emit,
        membership: Membership | None,
        on_banned: Callable[[PeerId], None] = lambda peer: None,
        is_donor: Callable[[PeerId], bool] = lambda peer: False,
        has_learner: bool = True,
        further_places: int = 0,
        relays: Relays = Relays.WHILE_DIALLED,
        router: Router | None = None,
    ) -> None:
        """``is_donor``: whether a peer lends us its engine now, which keeps its connection. ``has_learner`` is what
        heartbeats say. ``further_places`` is for how many connections more than a node that
        trains has there is room. ``router`` may open a port."""
        self.host, self.started, self.goodbye = host, anyio.Event(), "left"
        self._settings, self._wall_clock, self._emit, self._on_banned = settings, wall_clock, emit, on_banned
        self._is_donor = is_donor
        self.membership, self._has_learner = membership, has_learner
        self._started_at_seconds, self._leaving = wall_clock(), anyio.Event()
        self._tasks: TaskGroup | None = None
        self.table = PeerTable()
        # Another name of the file would lift the bans kept on disk.
        self.reputations = ReputationBook(settings.home_path / "trust.json")
        self.conduct = PeerConduct(
            host, self.table, self.reputations, membership, on_banned=self._ban, wall_clock=wall_clock
        )
        self.pacing = SwarmPacing(
            settings.heartbeat_seconds,
            heard_since=self.table.heard_since,
            advertised_since=self.table.advertised_since,
            clock=wall_clock,
        )
        self.heartbeats = OwnHeartbeats(
            settings.name, settings.software, wall_clock=wall_clock, has_learner=has_learner
        )
        self.gossip = self._new_gossip(key)
        self.gossip.listen(self._on_announcement)
        manifest = settings.open_manifest()
        self.peering = self._new_peering(random, further_places, manifest)
        self.reaching = self._new_reaching(relays, router)
        self._manifest = ManifestAnswers(host, manifest) if manifest is not None else None
        self._members = self._new_member_exchange(random)
        self._letters = self._new_letter_exchange()

    def _new_gossip(self, key: NodeKey) -> Gossip:
        membership = self.membership
        return Gossip(
            self.host,
            key,
            self._settings.swarm_id_bytes,
            wall_clock=self._wall_clock,
            is_banned=self.conduct.is_banned,
            is_member=None if membership is None else lambda peer: membership.refusal(peer) is None,
            allowance=self.pacing.allowance,
        )

    def _new_peering(self, random: Random, further_places: int, manifest: Manifest | None) -> Peering:
        membership = self.membership
        return Peering(
            self.host,
            self._settings.swarm_id_bytes,
            configured=self._settings.peers,
            remembered=self._settings.home_path / "peers.json",
            random=random,
            on_lan=self._settings.lan_discovery,
            is_banned=self.conduct.is_banned,
            standing=self.conduct.reputation,
            is_of_use=self._is_of_use,
            trial_seconds=lambda: TRIAL_HEARTBEATS * self.pacing.heartbeat_seconds(),
            claimed=lambda peer: claimed_addresses(peer, self.table.known(peer).heartbeat),
            on_refused=membership.on_refused if membership is not None else lambda peer, error: None,
            further_places=further_places,
            manifest=manifest,
        )

    def _is_of_use(self, peer: PeerId) -> bool:
        return self.reaching.is_relay(peer) or self._is_donor(peer) or self.conduct.is_of_use(peer)

    def _new_reaching(self, relays: Relays, router: Router | None) -> Reaching:
        return Reaching(
            self.host,
            members=self.peering.members,
            on_place=self.peering.tell_soon,
            relays=relays,
            router=router,
        )

    def _new_member_exchange(self, random: Random) -> MemberExchange | None:
        if self.membership is None:
            return None
        return MemberExchange(self.host, self.membership, random=random, is_trying=self.peering.is_trying)

    def _new_letter_exchange(self) -> LetterExchange | None:
        if self.membership is None:
            return None

        def relays() -> Sequence[PeerId]:
            reach = self.reaching.status()
            return reach.relays if reach.is_out_of_reach else ()

        return LetterExchange(self.host, self.membership.letters, clock=self._wall_clock, relays=relays)

    async def run(self, *duties: Duty) -> None:
        """Runs beside ``duties`` until ``leave``, or cancelled.

        Raises ``TransportError`` if the port is in use, ``RefusedError`` once this participant is no longer a member of
        its private cluster.
        """
        async with self.host.run():
            for peer in self.reputations.banned(self._wall_clock()):
                self.host.block(peer)
            await self.gossip.start()
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                try:
                    await self._run_duties(tasks, duties)
                finally:
                    self._tasks = None  # before it closes: other nodes' goodbyes may arrive until the host is down
                tasks.cancel_scope.cancel()
        self._save()

    async def _run_duties(self, tasks: TaskGroup, duties: tuple[Duty, ...]) -> None:
        """Starts everything that a participant does by itself, and returns once it has left and said goodbye."""
        own: tuple[Duty, ...] = (
            self.peering.run,
            self.reaching.run,
            partial(self.heartbeats.run, self.say, host=self.host, pacing=self.pacing),
            partial(watch_connectivity, self.host, self.peering.alone_because, self._emit),
            self._save_regularly,
        )
        for duty in own + duties:
            tasks.start_soon(duty)
        if self._members is not None:
            tasks.start_soon(self._members.run)
        addresses = list(self.host.addresses())  # this machine's own: no relay or router was asked yet
        self._keep_port(addresses)
        self._emit("ready", {"peer": self.host.peer_id, "addresses": addresses})
        self.started.set()
        await self._leaving.wait()
        await self.say(Goodbye(self.goodbye))
        told = set(self.host.peers())
        with anyio.move_on_after(GOODBYE_SECONDS):
            while told & set(self.host.peers()):  # noqa: ASYNC110  there is no event for it
                await anyio.sleep(GOODBYE_LOOK_SECONDS)

    def leave(self, reason: str) -> None:
        """Says goodbye and ends ``run``."""
        self.goodbye = reason[: limits.REASON_BYTES]
        self._leaving.set()

    async def answer(self, request: api.Request) -> api.Reply | None:
        """Returns the reply to what every participant can be asked; None to all else. Raises ``StarlingError``."""
        match request:
            case api.AskPeers():
                return self._peer_list()
            case api.Decree(kind, document):
                if self.membership is None:
                    raise ConfigurationError("this node is not in a private cluster: the document is for another node")
                self.membership.take(kind, document)
            case api.LeaveLetter(letter):
                return api.LetterLeft(await self._letters_of_cluster().leave(letter))
            case api.AskLetter(lookup):
                return api.LetterSeen(await self._letters_of_cluster().receipt(lookup))
            case api.Leave(reason):
                self.leave(reason)
            case _:
                return None
        return api.Done()

    def _letters_of_cluster(self) -> LetterExchange:
        if self._letters is None:
            raise ConfigurationError("this node is not in a private cluster, and an open swarm needs no invite")
        return self._letters

    async def answer_without_learner(self, request: api.Request, lending: api.LendingStatus | None = None) -> api.Reply:
        """Returns the reply of a participant that has no learner. Raises ``ConfigurationError`` for what takes one."""
        if isinstance(request, api.AskStatus):
            return msgspec.structs.replace(self.status(), lending=lending)
        reply = await self.answer(request)
        if reply is None:
            what = "a relay" if lending is None else "a donor"
            raise ConfigurationError(f"{what} runs here, which neither trains nor keeps blobs: start starling up")
        return reply

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
            paused=self.heartbeats.paused,
            reach=self.reaching.status(),
            has_learner=self._has_learner,
            other_swarm=self.peering.other_swarm(),
        )

    def _peer_list(self) -> api.PeerList:
        return api.PeerList(
            listed_peers(
                self.host,
                self.table,
                self.reputations,
                self.peering.book,
                refused_offsets=self.gossip.refused_offsets,
                now_seconds=self._wall_clock(),
            )
        )

    def _on_announcement(self, announcement: Announcement) -> None:
        peer = announcement.sender
        match announcement.body:
            case Heartbeat() as heartbeat:
                is_first = self.table.on_heartbeat(announcement, heartbeat, self._wall_clock())
                if is_first is not None:
                    self.pacing.on_heartbeat(is_first=is_first)
            case Goodbye(reason):
                log.info("%s left: %r", peer, reason)
                self.table.leave(peer, announcement.time_seconds)
                if self._tasks is not None:
                    self._tasks.start_soon(self.peering.depart, peer)

    def _ban(self, peer: PeerId, because: str) -> None:
        self._on_banned(peer)
        self.peering.ban(peer)
        self._emit("banned", {"peer": peer, "reason": because})
        self._save()

    async def say(self, body: Heartbeat | StateAdvert | Goodbye) -> None:
        """Announces; what cannot be announced is logged."""
        try:
            await self.gossip.announce(body)
        except StarlingError as error:
            log.warning("could not announce: %s", error)

    async def _save_regularly(self) -> None:
        while True:
            await anyio.sleep(SAVE_SECONDS)
            self._save()

    def _keep_port(self, addresses: list[str]) -> None:
        try:
            keep_listening_port(self._settings.listen, self._settings.port_path, addresses)
        except StorageError as error:
            log.error("the next start may use another port: %s", error)

    def _save(self) -> None:
        """Writes reputations and addresses; a disk that does not take them is logged."""
        try:
            self.reputations.save()
            self.peering.save()
        except StorageError as error:
            log.error("%s", error)
