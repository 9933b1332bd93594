"""Keeps a node in its swarm: carries out what ``discovery.py`` decides.

Guarantees: a configured peer is dialled until it is connected; a node that reaches no peer keeps trying, and
``alone_because`` reports what it tries; the addresses of peers that were reached are kept in ``peers.json``, newest
first, and dialled at the next start. Which peers are in our swarm is the matter of ``swarm_members.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from random import Random

import anyio
from anyio.abc import TaskGroup

from protocol.errors import ConfigurationError, RefusedError, StarlingError
from protocol.manifest import Manifest
from protocol.meeting_points import dht_key
from swarm.address_groups import groups_of, spread
from swarm.host import Host, PeerId
from swarm.peers.dht_lookups import DhtLookups
from swarm.peers.discovery import (
    SIMULTANEOUS_DIAL_SECONDS,
    AddressBook,
    AddressSource,
    Candidate,
    Dial,
    DiscoveryConfig,
    after_failure,
    after_success,
    next_dials,
    peers_short,
    why_alone,
)
from swarm.peers.keeping import (
    REPLACED_EVERY_SECONDS,
    STRANGERS_STANDING,
    Connection,
    ConnectionLog,
    kept_for_certain,
    recommended,
    superfluous,
    to_replace,
)
from swarm.peers.name_lookups import NameLookups, is_name
from swarm.peers.remembered_addresses import RememberedAddresses
from swarm.peers.requested_dials import RequestedDials
from swarm.peers.swarm_members import QUESTION_SECONDS, SwarmMembers

TICK_SECONDS = 0.5
DIAL_SECONDS = 10.0


class Peering:
    """Run ``run()`` beside the host. ``remembered`` is the path of ``peers.json``, or None to keep no addresses."""

    def __init__(
        self,
        host: Host,
        swarm_id: bytes,
        *,
        configured: Sequence[str],
        remembered: Path | None,
        random: Random,
        on_lan: bool = True,
        is_banned: Callable[[PeerId], bool] = lambda peer: False,
        standing: Callable[[PeerId], float] = lambda peer: STRANGERS_STANDING,
        is_of_use: Callable[[PeerId], bool] = lambda peer: True,
        trial_seconds: Callable[[], float] = lambda: math.inf,
        claimed: Callable[[PeerId], Sequence[str]] = lambda peer: (),
        on_refused: Callable[[PeerId, RefusedError], None] = lambda peer, error: None,
        config: DiscoveryConfig | None = None,
        further_places: int = 0,
        manifest: Manifest | None = None,
    ) -> None:
        """``is_of_use`` says whether a peer brought anything, which is asked ``trial_seconds`` after it connected.
        ``claimed`` returns the addresses that a peer claims in its announcements: they are dialled to reach it.
        ``further_places`` is for how many connections more than ``keeping.CONNECTIONS`` there is room. ``manifest`` is
        that of our open swarm: a peer of another one is asked for its own, to say what differs."""
        self.book = AddressBook()
        self._host = host
        self._remembered = RememberedAddresses(remembered)
        self._random = random
        self._on_lan = on_lan
        self._standing = standing
        self._is_of_use = is_of_use
        self._trial_seconds = trial_seconds
        self._replaced_at_seconds = -math.inf
        # Of the latest tick. The mesh of gossip and peers that ask for addresses want them many times a second.
        self._lately: Sequence[Connection] = ()
        self._config = config or DiscoveryConfig()
        self._further_places = further_places
        self._dialling: set[PeerId] = set()
        self._members = SwarmMembers(
            host, swarm_id, self.book, random=random, busy=self._dialling, is_banned=is_banned,
            on_address=self._note_told,
            on_refused=on_refused, recommended=self._recommended, manifest=manifest,
        )  # fmt: skip
        self.failures, self.refusals = self._members.failures, self._members.refusals
        self._dht = DhtLookups(
            host, dht_key(swarm_id), on_address=self._note_provider, is_short=lambda: self._is_short,
            on_failure=lambda error: self.failures.update([error.reason]),
        )  # fmt: skip
        host.prefer(self._kept_for_certain)
        self._log = ConnectionLog()
        self._requested = RequestedDials(
            host, self.book, self._members, self._log, claimed=claimed, on_address=self._note_told,
            on_failure=self._note_failure,
        )  # fmt: skip
        self._names = NameLookups(
            host, (address for address in configured if is_name(address)), on_addresses=self._on_name,
            on_failure=lambda error: self.failures.update([error.reason]),
        )  # fmt: skip
        self._of_name: dict[str, Sequence[str]] = {}
        self._add_known(configured)

    def _add_known(self, configured: Sequence[str]) -> None:
        """Raises ``ConfigurationError`` for what is no address of a peer."""
        for address in configured:
            if not is_name(address) and not self.book.add(address, AddressSource.CONFIGURED):
                raise ConfigurationError(f"{address!r} is no peer's address: expected /ip4/…/tcp/…/p2p/<peer id>")
        for address in self._remembered.load():
            self.book.add(address, AddressSource.REMEMBERED)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._dht.run)
            tasks.start_soon(self._names.run)
            tasks.start_soon(self._members.exchange_regularly, lambda: self._is_short)
            while True:
                self._tick(tasks)
                await anyio.sleep(TICK_SECONDS)

    def _tick(self, tasks: TaskGroup) -> None:
        now_seconds = anyio.current_time()
        connected = set(self._host.peers())
        for peer in self._log.observe(connected, now_seconds):
            self._put_off(peer, now_seconds)
        for address in self._host.heard_on_lan():
            self._note(address, AddressSource.LAN)
        for peer in self._members.observe(connected, now_seconds):
            self._dialling.add(peer)
            tasks.start_soon(self._members.meet, peer)
        connections = self._lately = self._connections(connected, now_seconds)
        for dial in self._next_dials(connections, now_seconds):
            self._dialling.add(Candidate(dial.address, AddressSource.PEER).peer)
            tasks.start_soon(self._dial, dial.address)
        for peer in self._members.to_tell():
            tasks.start_soon(self._members.tell, peer)
        for peer in superfluous(now_seconds, connections, self._further_places):
            tasks.start_soon(self._host.disconnect, peer)
        self._replace_useless(connections, now_seconds, tasks)

    def _next_dials(self, connections: Sequence[Connection], now_seconds: float) -> list[Dial]:
        connected = {c.peer for c in connections}
        counted = [c for c in connections if c.is_dialled or not c.is_useless]  # of those, room is made one by one
        dialled_us = [c.peer for c in counted if not c.is_dialled and c.standing <= STRANGERS_STANDING]
        is_short = peers_short(len(counted), len(dialled_us), self._config) > len(self._dialling)
        candidates = self.book.candidates() if is_short else self.book.configured()
        return next_dials(
            now_seconds,
            candidates,
            ourselves=self._host.peer_id,
            connected=connected,
            dialling=self._dialling,
            refused={c.peer for c in candidates if self._members.is_refused(c.peer)},
            config=self._config,
            networks=[c.groups for c in connections],
            doubts=self.book.doubts,
            dialled_us=dialled_us,
            not_counted=len(connections) - len(counted),
        )

    def _replace_useless(self, connections: Sequence[Connection], now_seconds: float, tasks: TaskGroup) -> None:
        """Gives up a peer of no use that we dialled, if there is an address that was never tried."""
        if now_seconds - self._replaced_at_seconds < REPLACED_EVERY_SECONDS:
            return
        peer = to_replace([c for c in connections if c.is_useless])
        connected = {c.peer for c in connections}
        if peer is not None and any(c.peer not in connected for c in self._untried()):
            self._replaced_at_seconds = now_seconds
            for candidate in self.book.of(peer):
                self.book.update(after_failure(candidate, now_seconds, "it brought nothing", self._random))
            tasks.start_soon(self._host.disconnect, peer)

    def _connections(self, connected: Collection[PeerId], now_seconds: float) -> list[Connection]:
        configured = {c.peer for c in self.book.configured()}
        trial_seconds = self._trial_seconds()
        connections = []
        for peer in sorted(connected):
            since_seconds = self._log.since_seconds(peer, now_seconds)
            age_seconds = now_seconds - since_seconds
            is_configured = peer in configured
            connections.append(
                Connection(
                    peer,
                    since_seconds,
                    groups_of(self._host.remote_ip(peer)),
                    is_configured=is_configured,
                    is_dialled=self._log.is_dialled(peer),
                    is_unproven=peer not in self._members.peers and age_seconds > QUESTION_SECONDS,
                    is_useless=not is_configured and age_seconds > trial_seconds and not self._is_of_use(peer),
                    standing=self._standing(peer),
                    recent_seconds=self._log.recent_seconds(peer, now_seconds),
                )
            )
        return connections

    def _kept_for_certain(self) -> set[PeerId]:
        return kept_for_certain(self._lately)

    def _put_off(self, peer: PeerId, now_seconds: float) -> None:
        """Dials a peer that closed the connection at once later, and later each time: it is full."""
        for candidate in self.book.of(peer):
            if candidate.reached_at_seconds is not None:
                self.book.update(after_failure(candidate, now_seconds, "it closed the connection", self._random))

    async def _dial(self, address: str) -> None:
        peer = Candidate(address, AddressSource.PEER).peer
        try:
            await self._host.connect(address, deadline_seconds=DIAL_SECONDS)
            self._log.note_dialled(peer)
            await self._members.ask(peer)
        except StarlingError as error:
            self._note_failure(peer, address, error)
            await self._members.on_failure(peer, error)
        else:
            self._on_reached(peer, address)
        finally:
            self._dialling.discard(peer)

    def _note_failure(self, peer: PeerId, address: str, error: StarlingError) -> None:
        for candidate in self.book.of(peer):
            if candidate.address == address:
                self.book.update(after_failure(candidate, anyio.current_time(), str(error), self._random))

    def _on_reached(self, peer: PeerId, address: str) -> None:
        for candidate in self.book.of(peer):
            if candidate.address == address:
                self.book.update(after_success(candidate, anyio.current_time()))

    def _note(self, address: str, source: AddressSource, teller: str = "") -> None:
        """Adds the address of a peer, which may learn of us at the same moment."""
        waits_seconds = SIMULTANEOUS_DIAL_SECONDS if self._host.peer_id > Candidate(address, source).peer else 0.0
        self.book.add(address, source, not_before_seconds=anyio.current_time() + waits_seconds, teller=teller)

    def _note_told(self, address: str, teller: PeerId) -> None:
        self._note(address, AddressSource.PEER, teller=teller)

    def _on_name(self, name: str, addresses: Sequence[str]) -> None:
        """Takes what a configured name leads to as configured, and no longer what it led to before."""
        for address in set(self._of_name.get(name, ())) - set(addresses):
            self.book.release(address)
        self._of_name[name] = addresses
        for address in addresses:
            self.book.add(address, AddressSource.CONFIGURED)

    def _note_provider(self, address: str) -> None:
        self._note(address, AddressSource.DHT)

    def _recommended(self, members: set[PeerId]) -> list[PeerId]:
        """Returns the members in the order in which a newcomer should dial them, each part spread over networks."""
        connections = [*self._lately]
        self._random.shuffle(connections)
        parts = [[c for c in part if c.peer in members] for part in recommended(connections)]
        return [peer for part in parts for peer in spread([c.peer for c in part], [c.groups for c in part])]

    async def reach(self, peer: PeerId, deadline_seconds: float) -> None:
        """Connects to ``peer`` unless it is connected. Raises ``TransportError``."""
        await self._requested.reach(peer, deadline_seconds)

    async def depart(self, peer: PeerId) -> None:
        """Disconnects a peer that said goodbye, and does not dial it for a while."""
        self._members.depart(peer)
        await self._host.disconnect(peer)

    def connected_seconds(self, peer: PeerId) -> float:
        """Returns for how long the peer has been connected of late; what was before this connection fades."""
        return self._log.recent_seconds(peer, anyio.current_time())

    def ban(self, peer: PeerId) -> None:
        self._members.peers.discard(peer)
        self._host.block(peer)

    def members(self) -> set[PeerId]:
        """Returns the connected peers that have shown that they are in our swarm."""
        return self._members.peers

    def is_dialled(self, peer: PeerId) -> bool:
        """Whether we dialled a connected peer."""
        return self._log.is_dialled(peer)

    def tell_soon(self) -> None:
        """Exchanges addresses with some connected peers at the next tick: ours have changed."""
        self._members.tell_soon()

    def is_trying(self) -> bool:
        """Whether there are addresses that were not dialled yet."""
        return any(True for _ in self._untried())

    def _untried(self) -> Iterator[Candidate]:
        others = (c for c in self.book.candidates() if c.peer != self._host.peer_id)
        untried = (c for c in others if not c.failures and c.reached_at_seconds is None)
        return (c for c in untried if not self._members.is_refused(c.peer))

    def alone_because(self) -> str | None:
        """Returns None while a peer is connected, otherwise why none is."""
        if self._host.peers():
            return None
        known = [c for c in self.book.candidates() if c.peer != self._host.peer_id]
        others = [c for c in known if not self._members.is_refused(c.peer)]
        if not others and (other_swarm := self.other_swarm()) is not None:
            return f"{other_swarm}; listening, and asking again later"
        if known and not others:
            return "all known peers have left, are banned or are in another swarm; listening, and asking again later"
        if not others and self._names.names:
            return next(iter(self._names.failures.values()), f"looking up {self._names.names[0]}")
        return why_alone(anyio.current_time(), others, dialling=self._dialling, on_lan=self._on_lan)

    def other_swarm(self) -> str | None:
        """Returns which peer was met last that is in another swarm, and why; None if none was of late."""
        return self._members.other_swarms.latest()

    @property
    def _is_short(self) -> bool:
        return len(self._host.peers()) < self._config.peers_wanted

    def save(self) -> None:
        """Writes ``peers.json`` if its content changed. Raises ``StorageError``."""
        self._remembered.save(self.book.candidates(), lambda peer: self._standing(peer) > STRANGERS_STANDING)
