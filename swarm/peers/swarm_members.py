"""Which connected peers are in our swarm, and the addresses that are exchanged with them.

Guarantees: a peer shows by peer exchange that it is in our swarm, and is disconnected otherwise; one that dialled us
and does not ask is asked; one that left, or is in another swarm, is refused for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random

import anyio

from protocol.errors import ProtocolError, RefusedError, StarlingError
from protocol.limits import ADDRESSES_PER_ANSWER
from protocol.manifest import Manifest
from swarm.host import Host, PeerId
from swarm.peers.discovery import DEPARTED_SECONDS, AddressBook
from swarm.peers.other_swarms import OtherSwarms
from swarm.peers.peer_exchange import PeerExchange

QUESTION_SECONDS = 5.0  # for a peer that dialled us to ask first; then we ask
EXCHANGE_EVERY_SECONDS = 60.0
EXCHANGE_WHEN_SHORT_SECONDS = 10.0
TOLD_AT_ONCE = 8
OTHER_SWARM_SECONDS = 600.0


class SwarmMembers:
    """``peers`` are the connected ones that have shown that they are in our swarm.

    ``on_address`` is called with (address, who told it); ``recommended`` puts members into the order in which a
    newcomer should dial them; ``on_refused`` is called when a peer answers and does not let us in. ``busy`` are peers
    that are being dialled or asked, which others may change too.
    """

    def __init__(
        self,
        host: Host,
        swarm_id: bytes,
        book: AddressBook,
        *,
        random: Random,
        busy: set[PeerId],
        is_banned: Callable[[PeerId], bool],
        on_address: Callable[[str, PeerId], None],
        on_refused: Callable[[PeerId, RefusedError], None],
        recommended: Callable[[set[PeerId]], Sequence[PeerId]],
        manifest: Manifest | None,
    ) -> None:
        self.peers: set[PeerId] = set()
        self.failures: Counter[str] = Counter()  # of dials, exchanges and look-ups, by reason
        self.refusals: Counter[str] = Counter()  # of peers that are in another swarm or break the protocol
        self._host, self._book, self._random, self._busy = host, book, random, busy
        self._is_banned, self._on_address, self._on_refused = is_banned, on_address, on_refused
        self._recommended = recommended
        self.other_swarms = OtherSwarms(host, manifest)
        self._exchange = PeerExchange(
            host, swarm_id, on_addresses=self._on_addresses, addresses_for=self._addresses_for,
            on_other_swarm=self.other_swarms.note,
        )  # fmt: skip
        self._refused: dict[PeerId, float] = {}  # departed, or in another swarm: until when
        self._met_at: dict[PeerId, float] = {}  # connected peers that have yet to ask, or to be asked
        self._untold = False  # whether peers do not have our newest addresses

    def observe(self, connected: Collection[PeerId], now_seconds: float) -> list[PeerId]:
        """Notes who is connected; returns the peers that had the time to ask and did not: ``meet`` them."""
        self.peers &= set(connected)
        self._refused = {peer: until for peer, until in self._refused.items() if until > now_seconds}
        self._met_at = {p: self._met_at.get(p, now_seconds) for p in set(connected) - self.peers}
        late = [p for p, met_at_seconds in self._met_at.items() if now_seconds - met_at_seconds > QUESTION_SECONDS]
        return [peer for peer in late if peer not in self._busy]

    def is_refused(self, peer: PeerId) -> bool:
        return peer in self._refused or self._is_banned(peer)

    def tell_soon(self) -> None:
        """Lets ``to_tell`` return ``TOLD_AT_ONCE`` members once: our addresses have changed."""
        self._untold = True

    def to_tell(self) -> list[PeerId]:
        if not self._untold:
            return []
        self._untold = False
        return self._random.sample(sorted(self.peers), min(TOLD_AT_ONCE, len(self.peers)))

    async def ask(self, peer: PeerId) -> None:
        """Exchanges addresses with a peer, which shows that it is in our swarm. Raises ``StarlingError``."""
        await self._exchange.ask(peer)

    async def meet(self, peer: PeerId) -> None:
        """Asks a peer that dialled us and has not asked itself, and is busy until then."""
        try:
            await self._exchange.ask(peer)
        except StarlingError as error:
            await self.on_failure(peer, error)
            self._met_at[peer] = anyio.current_time() + EXCHANGE_EVERY_SECONDS  # it may run other software
        finally:
            self._busy.discard(peer)

    async def tell(self, peer: PeerId) -> None:
        try:
            await self._exchange.ask(peer)
        except StarlingError as error:
            await self.on_failure(peer, error)

    async def exchange_regularly(self, is_short: Callable[[], bool]) -> None:
        """Asks a member now and then, more often while this node has too few peers."""
        while True:
            await anyio.sleep(EXCHANGE_WHEN_SHORT_SECONDS if is_short() else EXCHANGE_EVERY_SECONDS)
            if self.peers:
                await self.tell(self._random.choice(sorted(self.peers)))

    async def seek(self, peer: PeerId) -> None:
        """Asks three members at most for addresses of a peer."""
        for member in self._random.sample(sorted(self.peers), min(3, len(self.peers))):
            try:
                await self._exchange.ask(member, [peer])
            except StarlingError as error:
                self.failures[error.reason] += 1
            if self._book.of(peer):
                return

    async def on_failure(self, peer: PeerId, error: StarlingError) -> None:
        """Counts what went wrong with a peer, and disconnects one that is in another swarm or breaks the protocol."""
        self.failures[error.reason] += 1
        if isinstance(error, RefusedError):
            self._on_refused(peer, error)
        if isinstance(error, ProtocolError):
            self.refusals[error.reason] += 1
            self._refused[peer] = anyio.current_time() + OTHER_SWARM_SECONDS
            await self._host.disconnect(peer)

    def depart(self, peer: PeerId) -> None:
        """Refuses a peer that said goodbye for ``DEPARTED_SECONDS``."""
        self._refused[peer] = anyio.current_time() + DEPARTED_SECONDS
        self.peers.discard(peer)

    def _on_addresses(self, peer: PeerId, own: Sequence[str], others: Sequence[str]) -> None:
        self.peers.add(peer)
        self._met_at.pop(peer, None)
        for address in [each for each in own if each.endswith(f"/p2p/{peer}")] + list(others):
            self._on_address(address, peer)

    def _addresses_for(self, peer: PeerId, sought: Sequence[PeerId]) -> list[str]:
        addresses = [c.address for s in sought for c in self._book.of(s)]
        for member in self._recommended(self.peers - {peer}):
            addresses.extend(c.address for c in self._book.of(member)[:4])
        reached = [c for c in self._book.candidates() if c.reached_at_seconds is not None and c.peer != peer]
        self._random.shuffle(reached)
        addresses.extend(c.address for c in reached)
        return list(dict.fromkeys(addresses))[:ADDRESSES_PER_ANSWER]
