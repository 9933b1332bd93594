"""Hole punching (DCUtR): two hosts that are connected through a relay dial each other at the same moment.

The host that was dialled through the relay begins. First it dials the other one plainly, which suffices where that one
is not behind a router. Otherwise both send where they were seen, measure a round trip, and open TCP connections at the
same time, each from its listening port: a router that keeps ports lets the other's first packet in as the answer to its
own. On a connection opened from both sides the host that began is the listener of the handshake.

A dial that failed leaves traces in routers: they let the other's next first packet in, to a listening port that answers
it, and then drop the answer as part of the failed connection. So the plain dial leaves from another port, and both
sides take fresh ports for every further attempt, which routers that keep ports show unchanged.

Some routers answer a first packet that nobody expects with a reset. The side whose packet came too early then sends
another one at once: each is under way for half of a round trip, so that one of them meets the other side's.

It fails behind a router that gives every connection another port (symmetric), on either side unless the other side
takes connections from anywhere; then the two stay connected through the relay.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.errors import StarlingError, UnreachableError
from swarm.deadlines import deadline
from swarm.host import PeerId, Stream, tcp_address
from swarm.hosts.libp2p.containment import Failures, innermost_cause
from swarm.hosts.libp2p.punch_bounds import PunchBounds, SocketAddress, punchable
from swarm.hosts.libp2p.relaying.circuit_messages import (
    PUNCH_PROTOCOL,
    packed,
    receive_message,
    send_message,
    unpacked,
)

ATTEMPTS: Final = 3
BETWEEN_SECONDS: Final = 2.0
MESSAGE_SECONDS: Final = 10.0
DIAL_SECONDS: Final = 5.0
PLAIN_DIAL_SECONDS: Final = 2.0  # mostly in vain
RESETS: Final = 16  # after which a dial is given up: of a router, or of a machine where nobody listens
SETTLE_SECONDS: Final = 0.3  # for the relayed connection to be in use at both ends
ANY_PORT: Final = 0
FRESH_PORTS: Final = range(20_000, 60_000)
AGAIN_SECONDS: Final = 900.0  # a router may have changed, or a limit may have refused

OpenStream = Callable[..., Awaitable[Stream]]


def fresh_port() -> int:
    return secrets.choice(FRESH_PORTS)  # one that is taken fails the attempt


class Punching:
    """``is_relayed`` says whether a peer is connected through a relay only; ``seen_at`` where the relay sees it;
    ``own_addresses`` where relays see us; ``source_of`` the address from which to dial an IP address, or None.
    ``outcomes`` counts the attempts by their end."""

    def __init__(
        self,
        network: Swarm,
        open_stream: OpenStream,
        failures: Failures,
        *,
        is_relayed: Callable[[PeerId], bool],
        seen_at: Callable[[PeerId], SocketAddress | None],
        own_addresses: Callable[[], list[SocketAddress]],
        source_of: Callable[[str], SocketAddress | None],
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._network = network
        self._open_stream = open_stream
        self._failures = failures
        self._is_relayed = is_relayed
        self._seen_at = seen_at
        self._own_addresses = own_addresses
        self._source_of = source_of
        self._bounds = PunchBounds()
        self._busy: set[PeerId] = set()

    async def punch(self, peer: PeerId) -> None:
        """Tries for as long as ``peer``, which dialled us through a relay, is connected through one only."""
        if peer in self._busy:
            return
        self._busy.add(peer)
        try:
            await anyio.sleep(SETTLE_SECONDS)
            while self._is_relayed(peer):
                await self._attempts(peer)
                if self._is_relayed(peer):
                    self.outcomes["stays relayed"] += 1
                    await anyio.sleep(AGAIN_SECONDS)
        finally:
            self._busy.discard(peer)

    async def _attempts(self, peer: PeerId) -> None:
        await self._dial_all(peer, punchable([], self._seen_at(peer)), ANY_PORT, is_listener=False)
        for attempt in range(ATTEMPTS):
            if not self._is_relayed(peer):
                self.outcomes["direct"] += 1
                return
            try:
                await self._agree_and_dial(peer, fresh_port() if attempt else None)
            except StarlingError as error:
                self._failures.note("hole punching", error)
            if self._is_relayed(peer):
                await anyio.sleep(BETWEEN_SECONDS)

    async def _agree_and_dial(self, peer: PeerId, port: int | None) -> None:
        stream = await self._open_stream(peer, PUNCH_PROTOCOL, deadline_seconds=MESSAGE_SECONDS)
        try:
            with deadline(MESSAGE_SECONDS, f"agreeing with {peer} when to dial"):
                asked_at = anyio.current_time()
                await send_message(stream, self._own_message(port))
                answer = await receive_message(stream, HolePunch)
                round_trip_seconds = anyio.current_time() - asked_at
                if answer.type != HolePunch.CONNECT:
                    raise UnreachableError(f"{peer} does not punch holes")
                await send_message(stream, HolePunch(type=HolePunch.SYNC))
            await anyio.sleep(round_trip_seconds / 2)
            addresses = punchable(unpacked(answer.ObsAddrs), self._seen_at(peer))
            await self._dial_all(peer, addresses, port, is_listener=True)
        finally:
            await stream.reset()

    async def on_stream(self, stream: Stream) -> None:
        """Serves one stream of ``PUNCH_PROTOCOL``."""
        if not self._is_relayed(stream.peer):
            raise UnreachableError(f"{stream.peer} is connected directly")
        with deadline(MESSAGE_SECONDS, f"agreeing with {stream.peer} when to dial"):
            offer = await receive_message(stream, HolePunch)
            seen_at = self._seen_at(stream.peer)
            addresses = punchable(unpacked(offer.ObsAddrs), seen_at)
            port = fresh_port() if addresses and addresses[0] != seen_at else None  # as the other side does
            await send_message(stream, self._own_message(port))
            await receive_message(stream, HolePunch)
        await self._dial_all(stream.peer, addresses, port, is_listener=False)

    def _own_message(self, port: int | None) -> HolePunch:
        own = self._own_addresses()
        return HolePunch(
            type=HolePunch.CONNECT, ObsAddrs=packed([(ip, port) for ip, _ in own] if port is not None else own)
        )

    async def _dial_all(
        self, peer: PeerId, addresses: list[SocketAddress], port: int | None, *, is_listener: bool
    ) -> None:
        """Dials at once what the bounds allow, from ``port`` or else the listening one; returns when one connection
        stands or all dials have failed."""
        async with anyio.create_task_group() as dials:

            async def dial(address: SocketAddress) -> None:
                if await self._dial(peer, address, port, is_listener=is_listener):
                    dials.cancel_scope.cancel()

            for address in addresses:
                if self._bounds.take(address[0], anyio.current_time()):
                    dials.start_soon(dial, address)

    async def _dial(self, peer: PeerId, address: SocketAddress, source_port: int | None, *, is_listener: bool) -> bool:
        ip, port = address
        maddr = Multiaddr(tcp_address(ip, port))
        source = self._source_of(ip)
        if source is not None and source_port is not None:
            source = source[0], source_port
        is_plain = source_port == ANY_PORT
        dial = self._network.dial_addr_as_responder if is_listener else self._network.dial_addr
        try:
            with deadline(PLAIN_DIAL_SECONDS if is_plain else DIAL_SECONDS, f"dialling {maddr}"):
                await until_no_reset(partial(dial, maddr, ID.from_string(peer), source), 0 if is_plain else RESETS)
        except Exception as error:  # noqa: BLE001  the library's handshake with a stranger
            self._failures.note("hole punching", error)
            return False
        return True


async def until_no_reset(dial: Callable[[], Awaitable[object]], resets: int) -> None:
    """Dials again at once after a reset, ``resets`` times at most; raises what else comes of a dial."""
    for left in reversed(range(resets + 1)):
        try:
            await dial()
        except Exception as error:  # the library wraps it, in exceptions of several kinds
            if not left or not isinstance(innermost_cause(error), ConnectionRefusedError):
                raise
        else:
            return
