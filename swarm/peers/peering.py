"""Keeps a node in its swarm: carries out what ``discovery.py`` decides.

Guarantees: a configured peer is dialled until it is connected; a node that reaches no peer keeps trying, and
``alone_because`` reports what it tries; a peer shows by peer exchange that it is in our swarm, and is disconnected
otherwise; the addresses of peers that were reached are kept in ``peers.json``, newest first, and dialled at the next
start.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from random import Random

import anyio
from anyio.abc import TaskGroup

from protocol.errors import (
    ConfigurationError,
    ProtocolError,
    RefusedError,
    StarlingError,
    TransportError,
    UnreachableError,
)
from protocol.limits import ADDRESSES_PER_ANSWER
from protocol.meeting_points import dht_key
from swarm.address_groups import groups_of, spread
from swarm.host import Host, PeerId
from swarm.peers.claimed_addresses import ClaimDials
from swarm.peers.dht_lookups import DhtLookups
from swarm.peers.discovery import (
    DEPARTED_SECONDS,
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
from swarm.peers.peer_exchange import PeerExchange
from swarm.peers.remembered_addresses import RememberedAddresses

TICK_SECONDS = 0.5
DIAL_SECONDS = 10.0
QUESTION_SECONDS = 5.0  # for a peer that dialled us to ask first; then we ask
EXCHANGE_EVERY_SECONDS = 60.0
EXCHANGE_WHEN_SHORT_SECONDS = 10.0
TOLD_AT_ONCE = 8
OTHER_SWARM_SECONDS = 600.0


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
    ) -> None:
        """``is_of_use`` says whether a peer brought anything, which is asked ``trial_seconds`` after it connected.
        ``claimed`` returns the addresses that a peer claims in its announcements: they are dialled to reach it.
        ``further_places`` is for how many connections more than ``keeping.CONNECTIONS`` there is room."""
        self.failures: Counter[str] = Counter()  # of dials, exchanges and look-ups, by reason
        self.refusals: Counter[str] = Counter()  # of peers that are in another swarm or break the protocol
        self.book = AddressBook()
        self._host = host
        self._swarm_id = swarm_id
        self._remembered = RememberedAddresses(remembered)
        self._random = random
        self._on_lan = on_lan
        self._is_banned = is_banned
        self._standing = standing
        self._is_of_use = is_of_use
        self._trial_seconds = trial_seconds
        self._replaced_at_seconds = -math.inf
        self._claimed = claimed
        self._claim_dials = ClaimDials()
        self._on_refused = on_refused  # called when a peer answers and does not let us in
        self._config = config or DiscoveryConfig()
        self._further_places = further_places
        self._exchange = PeerExchange(
            host, swarm_id, on_addresses=self._on_addresses, addresses_for=self._addresses_for
        )
        self._dht = DhtLookups(
            host, dht_key(swarm_id), on_address=self._note_provider, is_short=lambda: self._is_short,
            on_failure=lambda error: self.failures.update([error.reason]),
        )  # fmt: skip
        host.prefer_providers(self._kept_for_certain)
        self._log = ConnectionLog()
        self._members: set[PeerId] = set()  # connected peers that are in our swarm
        self._dialling: set[PeerId] = set()
        self._refused: dict[PeerId, float] = {}  # departed, or in another swarm: until when
        self._untold = False  # whether peers do not have our newest addresses
        self._met_at: dict[PeerId, float] = {}  # connected peers that have yet to ask, or to be asked
        self._names = NameLookups(
            host, (address for address in configured if is_name(address)), on_addresses=self._on_name,
            on_failure=lambda error: self.failures.update([error.reason]),
        )  # fmt: skip
        self._of_name: dict[str, Sequence[str]] = {}
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
            tasks.start_soon(self._exchange_regularly)
            while True:
                self._tick(tasks)
                await anyio.sleep(TICK_SECONDS)

    def _tick(self, tasks: TaskGroup) -> None:
        now_seconds = anyio.current_time()
        connected = set(self._host.peers())
        self._members &= connected
        for peer in self._log.observe(connected, now_seconds):
            self._put_off(peer, now_seconds)
        self._refused = {peer: until for peer, until in self._refused.items() if until > now_seconds}
        for address in self._host.heard_on_lan():
            self._note(address, AddressSource.LAN)
        self._met_at = {p: self._met_at.get(p, now_seconds) for p in connected - self._members}
        for peer, met_at_seconds in self._met_at.items():
            if now_seconds - met_at_seconds > QUESTION_SECONDS and peer not in self._dialling:
                self._dialling.add(peer)
                tasks.start_soon(self._meet, peer)
        connections = self._connections(connected, now_seconds)
        for dial in self._next_dials(connections, now_seconds):
            self._dialling.add(Candidate(dial.address, AddressSource.PEER).peer)
            tasks.start_soon(self._dial, dial.address)
        if self._untold:
            self._untold = False
            for peer in self._random.sample(sorted(self._members), min(TOLD_AT_ONCE, len(self._members))):
                tasks.start_soon(self._tell, peer)
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
            refused={c.peer for c in candidates if self._is_refused(c.peer)},
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
                    is_unproven=peer not in self._members and age_seconds > QUESTION_SECONDS,
                    is_useless=not is_configured and age_seconds > trial_seconds and not self._is_of_use(peer),
                    standing=self._standing(peer),
                    recent_seconds=self._log.recent_seconds(peer, now_seconds),
                )
            )
        return connections

    def _kept_for_certain(self) -> set[PeerId]:
        return kept_for_certain(self._connections(set(self._host.peers()), anyio.current_time()))

    def _put_off(self, peer: PeerId, now_seconds: float) -> None:
        """Dials a peer that closed the connection at once later, and later each time: it is full."""
        for candidate in self.book.of(peer):
            if candidate.reached_at_seconds is not None:
                self.book.update(after_failure(candidate, now_seconds, "it closed the connection", self._random))

    def _is_refused(self, peer: PeerId) -> bool:
        return peer in self._refused or self._is_banned(peer)

    async def _dial(self, address: str) -> None:
        peer = Candidate(address, AddressSource.PEER).peer
        try:
            await self._host.connect(address, deadline_seconds=DIAL_SECONDS)
            self._log.note_dialled(peer)
            await self._exchange.ask(peer)
        except StarlingError as error:
            await self._on_failure(peer, address, error)
        else:
            self._on_reached(peer, address)
        finally:
            self._dialling.discard(peer)

    async def _meet(self, peer: PeerId) -> None:
        """Asks a peer that dialled us and has not asked itself."""
        try:
            await self._exchange.ask(peer)
        except StarlingError as error:
            await self._on_failure(peer, "", error)
            self._met_at[peer] = anyio.current_time() + EXCHANGE_EVERY_SECONDS  # it may run other software
        finally:
            self._dialling.discard(peer)

    async def _tell(self, peer: PeerId) -> None:
        try:
            await self._exchange.ask(peer)
        except StarlingError as error:
            await self._on_failure(peer, "", error)

    async def _on_failure(self, peer: PeerId, address: str, error: StarlingError) -> None:
        self.failures[error.reason] += 1
        if isinstance(error, RefusedError):
            self._on_refused(peer, error)
        now_seconds = anyio.current_time()
        for candidate in self.book.of(peer):
            if candidate.address == address:
                self.book.update(after_failure(candidate, now_seconds, str(error), self._random))
        if isinstance(error, ProtocolError):
            self.refusals[error.reason] += 1
            self._refused[peer] = now_seconds + OTHER_SWARM_SECONDS
            await self._host.disconnect(peer)

    def _on_reached(self, peer: PeerId, address: str) -> None:
        for candidate in self.book.of(peer):
            if candidate.address == address:
                self.book.update(after_success(candidate, anyio.current_time()))

    def _on_addresses(self, peer: PeerId, own: Sequence[str], others: Sequence[str]) -> None:
        self._members.add(peer)
        self._met_at.pop(peer, None)
        for address in own:
            if address.endswith(f"/p2p/{peer}"):
                self._note(address, AddressSource.PEER, teller=peer)
        for address in others:
            self._note(address, AddressSource.PEER, teller=peer)

    def _note(self, address: str, source: AddressSource, teller: str = "") -> None:
        """Adds the address of a peer, which may learn of us at the same moment."""
        waits_seconds = SIMULTANEOUS_DIAL_SECONDS if self._host.peer_id > Candidate(address, source).peer else 0.0
        self.book.add(address, source, not_before_seconds=anyio.current_time() + waits_seconds, teller=teller)

    def _on_name(self, name: str, addresses: Sequence[str]) -> None:
        """Takes what a configured name leads to as configured, and no longer what it led to before."""
        for address in set(self._of_name.get(name, ())) - set(addresses):
            self.book.release(address)
        self._of_name[name] = addresses
        for address in addresses:
            self.book.add(address, AddressSource.CONFIGURED)

    def _note_provider(self, address: str) -> None:
        self._note(address, AddressSource.DHT)

    def _addresses_for(self, peer: PeerId, sought: Sequence[PeerId]) -> list[str]:
        addresses = [c.address for s in sought for c in self.book.of(s)]
        for member in self._recommended(self._members - {peer}):
            addresses.extend(c.address for c in self.book.of(member)[:4])
        reached = [c for c in self.book.candidates() if c.reached_at_seconds is not None and c.peer != peer]
        self._random.shuffle(reached)
        addresses.extend(c.address for c in reached)
        return list(dict.fromkeys(addresses))[:ADDRESSES_PER_ANSWER]

    def _recommended(self, members: set[PeerId]) -> list[PeerId]:
        """Returns the members in the order in which a newcomer should dial them, each part spread over networks."""
        connections = self._connections(set(self._host.peers()), anyio.current_time())
        self._random.shuffle(connections)
        parts = [[c for c in part if c.peer in members] for part in recommended(connections)]
        return [peer for part in parts for peer in spread([c.peer for c in part], [c.groups for c in part])]

    async def reach(self, peer: PeerId, deadline_seconds: float) -> None:
        """Connects to ``peer`` unless it is connected. Raises ``TransportError``."""
        if peer in self._host.peers():
            return
        if self._is_refused(peer):
            raise UnreachableError(f"{peer} is banned or has left")
        failure: TransportError = UnreachableError(f"no address of {peer} is known")
        with anyio.move_on_after(deadline_seconds):
            for address in self._claimed(peer):
                self._note(address, AddressSource.PEER, teller=peer)
            if not self.book.of(peer):
                await self._seek(peer)
            for candidate in self.book.of(peer):
                try:
                    async with self._claim_dials.place(candidate):
                        await self._host.connect(candidate.address, deadline_seconds=deadline_seconds)
                    self._log.note_dialled(peer)
                    return
                except TransportError as error:
                    failure = error
                    now_seconds = anyio.current_time()
                    self.book.update(after_failure(candidate, now_seconds, str(error), self._random))
        raise failure

    async def _seek(self, peer: PeerId) -> None:
        for member in self._random.sample(sorted(self._members), min(3, len(self._members))):
            try:
                await self._exchange.ask(member, [peer])
            except StarlingError as error:
                self.failures[error.reason] += 1
            if self.book.of(peer):
                return

    async def depart(self, peer: PeerId) -> None:
        """Disconnects a peer that said goodbye, and does not dial it for ``DEPARTED_SECONDS``."""
        self._refused[peer] = anyio.current_time() + DEPARTED_SECONDS
        self._members.discard(peer)
        await self._host.disconnect(peer)

    def connected_seconds(self, peer: PeerId) -> float:
        """Returns for how long the peer has been connected of late; what was before this connection fades."""
        return self._log.recent_seconds(peer, anyio.current_time())

    def ban(self, peer: PeerId) -> None:
        self._members.discard(peer)
        self._host.block(peer)

    def members(self) -> set[PeerId]:
        """Returns the connected peers that have shown that they are in our swarm."""
        return self._members

    def is_dialled(self, peer: PeerId) -> bool:
        """Whether we dialled a connected peer."""
        return self._log.is_dialled(peer)

    def tell_soon(self) -> None:
        """Exchanges addresses with ``TOLD_AT_ONCE`` connected peers at the next tick: ours have changed."""
        self._untold = True

    def is_trying(self) -> bool:
        """Whether there are addresses that were not dialled yet."""
        return any(True for _ in self._untried())

    def _untried(self) -> Iterator[Candidate]:
        others = (c for c in self.book.candidates() if c.peer != self._host.peer_id and not self._is_refused(c.peer))
        return (c for c in others if not c.failures and c.reached_at_seconds is None)

    def alone_because(self) -> str | None:
        """Returns None while a peer is connected, otherwise why none is."""
        if self._host.peers():
            return None
        known = [c for c in self.book.candidates() if c.peer != self._host.peer_id]
        others = [c for c in known if not self._is_refused(c.peer)]
        if known and not others:
            return "all known peers have left, are banned or are in another swarm; listening, and asking again later"
        if not others and self._names.names:
            return next(iter(self._names.failures.values()), f"looking up {self._names.names[0]}")
        return why_alone(anyio.current_time(), others, dialling=self._dialling, on_lan=self._on_lan)

    @property
    def _is_short(self) -> bool:
        return len(self._host.peers()) < self._config.peers_wanted

    async def _exchange_regularly(self) -> None:
        while True:
            await anyio.sleep(EXCHANGE_WHEN_SHORT_SECONDS if self._is_short else EXCHANGE_EVERY_SECONDS)
            if self._members:
                await self._tell(self._random.choice(sorted(self._members)))

    def save(self) -> None:
        """Writes ``peers.json`` if its content changed. Raises ``StorageError``."""
        self._remembered.save(self.book.candidates(), lambda peer: self._standing(peer) > STRANGERS_STANDING)
