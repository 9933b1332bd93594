"""Dialling: an address of a peer, or one through a relay; and dialling anew, to prove who listens there.

Two hosts that dial each other at the same moment, each from its listening port, open one connection which both have
dialled (TCP's simultaneous open); its handshake has two initiators and fails. So a dial from the listening port that
failed in the handshake is repeated once from another port, by the greater peer id only after a moment, in which the
other one may have come through.
"""

from __future__ import annotations

from collections.abc import Container

import anyio
from libp2p.peer.id import ID
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.exceptions import Error as MultiaddrError  # type: ignore[import-untyped]

from protocol.errors import UnreachableError
from swarm.deadlines import deadline
from swarm.host import Address, PeerId
from swarm.hosts.libp2p.connecting.dial_failures import dial_failure, has_failed_in_handshake
from swarm.hosts.libp2p.connecting.network import HANDSHAKE_SECONDS, DoorwayNetwork
from swarm.hosts.libp2p.containment import PEER_FAILURES
from swarm.hosts.libp2p.punching import ANY_PORT
from swarm.hosts.libp2p.relaying.circuit_messages import CIRCUIT
from swarm.hosts.libp2p.relaying.traversal import Traversal
from swarm.hosts.libp2p.transport import MeteredTcp

ADDRESS_SECONDS = 3600  # for which the address of a peer that we dialled is kept for the DHT
MET_MIDWAY_SECONDS = 1.0  # for the smaller peer id to dial again


class Dialling:
    """The dials of one host. A peer is dialled once at a time, and not while it is connected or ``blocked``."""

    def __init__(self, network: DoorwayNetwork, tcp: MeteredTcp, traversal: Traversal, blocked: Container[ID]) -> None:
        self._network = network
        self._tcp = tcp
        self._traversal = traversal
        self._blocked = blocked
        self._under_way: dict[ID, anyio.Event] = {}

    async def connect(self, address: Address, deadline_seconds: float) -> PeerId:
        """As ``swarm.host.Host.connect``."""
        maddr, peer = parse_address(address)
        if peer in self._blocked or peer == self._network.get_peer_id():
            raise UnreachableError(f"{address} is {'blocked here' if peer in self._blocked else 'this host itself'}")
        with deadline(deadline_seconds, f"connecting to {address}"):
            while self._network.connection_to(peer) is None and peer in self._under_way:
                await self._under_way[peer].wait()
            if self._network.connection_to(peer) is None:
                await self._dial(maddr, peer)
        return str(peer)

    async def _dial(self, maddr: Multiaddr, peer: ID) -> None:
        self._under_way[peer] = done = anyio.Event()
        try:
            if str(maddr).endswith(CIRCUIT):
                await self._dial_relayed(str(maddr).removesuffix(CIRCUIT), peer)
                return
            self._network.peerstore.add_addrs(peer, [maddr], ADDRESS_SECONDS)
            await self._dial_direct(maddr, peer)
        except PEER_FAILURES as error:
            raise dial_failure(f"{maddr}/p2p/{peer}", error) from error
        finally:
            del self._under_way[peer]
            done.set()

    async def _dial_direct(self, maddr: Multiaddr, peer: ID) -> None:
        usual_source = self._tcp.usual_source(maddr)
        try:
            await self._network.dial_addr(maddr, peer)
        except PEER_FAILURES as error:
            if usual_source is None or not has_failed_in_handshake(error):
                raise
            if self._network.get_peer_id().to_bytes() > peer.to_bytes():
                await anyio.sleep(MET_MIDWAY_SECONDS)
            if self._network.connection_to(peer) is not None:
                return
            await self._network.dial_addr(maddr, peer, (usual_source[0], ANY_PORT))

    async def _dial_relayed(self, relay_address: Address, peer: ID) -> None:
        if CIRCUIT in relay_address:
            raise UnreachableError("a relay is not dialled through another one")
        relay = await self.connect(relay_address, HANDSHAKE_SECONDS)
        await self._traversal.circuits.dial(relay, peer)

    async def prove(self, address: Address, deadline_seconds: float) -> None:
        """As ``swarm.host.Host.prove``."""
        maddr, peer = _parsed(address)
        with deadline(deadline_seconds, f"dialling {address} anew"):
            try:
                raw = await self._tcp.dial_anew(maddr)
                try:
                    await self._network.upgrader.upgrade_security(raw, True, peer)
                finally:
                    with anyio.CancelScope(shield=True):
                        await raw.close()
            except PEER_FAILURES as error:
                raise dial_failure(address, error) from error


def parse_address(address: Address) -> tuple[Multiaddr, ID]:
    """Splits an address into the part to dial and the peer expected there. Raises ``UnreachableError``."""
    maddr, peer = _parsed(address)
    if peer is None:
        raise UnreachableError(f"{address} names no peer; an address ends in /p2p/<peer id>")
    return maddr, peer


def _parsed(address: Address) -> tuple[Multiaddr, ID | None]:
    where, separator, peer = address.rpartition("/p2p/")
    try:
        return (Multiaddr(where), ID.from_string(peer)) if separator else (Multiaddr(address), None)
    except (MultiaddrError, ValueError) as error:
        raise UnreachableError(f"{address} is not an address: {error}") from error
