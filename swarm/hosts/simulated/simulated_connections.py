"""The connections of one simulated host: dialling and being dialled, places at relays, links and how they break."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from protocol.errors import UnreachableError
from swarm.deadlines import deadline
from swarm.host import Address, Handshake, PeerId
from swarm.hosts.simulated.conditions import NetworkConditions
from swarm.hosts.simulated.gossip_ends import GossipEnd, Neighbour, Score
from swarm.hosts.simulated.simulated_handshake import perform_handshake
from swarm.hosts.simulated.simulated_relaying import CIRCUIT, SimulatedRelaying
from swarm.hosts.simulated.simulated_streams import SimulatedLink

DETECTION_SECONDS = 15.0  # until a cut connection is given up, as by the keep-alive of a real transport


class LinkedHost(Protocol):
    """What connections need of the hosts at their ends."""

    handshake: Handshake | None
    scores: defaultdict[PeerId, Score]
    gossip: GossipEnd
    connections: SimulatedConnections

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def is_running(self) -> bool: ...

    def require_running(self) -> TaskGroup:
        """Returns the tasks of the host. Raises ``UnreachableError`` unless it runs."""

    def count_sent(self, size_bytes: int) -> None: ...

    def count_received(self, size_bytes: int) -> None: ...


class SimulatedConnections:
    """Those of ``host``, which listens at ``address``. ``hosts`` are all hosts of the network by peer id.

    Calls of ``swarm.host.Host`` are answered as there, for a host that runs.
    """

    def __init__(
        self,
        host: LinkedHost,
        address: Address,
        hosts: Mapping[PeerId, LinkedHost],
        conditions: NetworkConditions,
        *,
        can_be_dialled: bool,
    ) -> None:
        self.address = address
        self.can_be_dialled = can_be_dialled
        self.links: dict[PeerId, SimulatedLink] = {}
        self.blocked: set[PeerId] = set()
        self.relaying = SimulatedRelaying()
        self._host = host
        self._ourselves = host.peer_id
        self._hosts = hosts
        self._conditions = conditions
        self._dialled: set[PeerId] = set()
        self._neighbours: list[Neighbour] | None = None  # None after every change of the links

    @property
    def ip(self) -> str:
        return self.address.split("/")[2]

    # Dialling

    async def connect(self, address: Address, deadline_seconds: float) -> PeerId:
        peer = address.rpartition("/p2p/")[2]
        if peer in self.links:
            return peer
        if peer == self._ourselves or peer in self.blocked:
            raise UnreachableError(f"{address} is {'this host itself' if peer == self._ourselves else 'blocked here'}")
        with deadline(deadline_seconds, f"connecting to {address}"):
            await self._dial(address, peer)
        return peer

    async def _dial(self, address: Address, peer: PeerId) -> None:
        await anyio.sleep(2 * max(self._conditions.delay_seconds))
        self._host.require_running()
        if self._conditions.is_partitioned(self._ourselves, peer):
            await anyio.sleep_forever()
        target = self._hosts.get(peer)
        relay = await self._relay_of(address, peer) if CIRCUIT in address else None
        if target is None or not target.is_running or (relay is None and target.connections.address != address):
            raise UnreachableError(f"no host listens at {address}")
        theirs = target.connections
        if relay is None and not theirs.can_be_dialled:
            await anyio.sleep_forever()
        if self._ourselves in theirs.blocked:
            raise UnreachableError(f"{address} refused the connection")
        if peer not in self.links and (self._host.handshake is not None or target.handshake is not None):
            delay_seconds = max(self._conditions.delay_seconds)
            dialler, dialled = (self._ourselves, self._host.handshake), (peer, target.handshake)
            await perform_handshake(dialler, dialled, theirs.address, delay_seconds=delay_seconds)
            self._host.require_running()
            target.require_running()
        if peer not in self.links:
            self.links[peer] = theirs.links[self._ourselves] = self._link_with(target)
            self._neighbours = theirs._neighbours = None
            if relay is not None:
                self.relaying.through[peer] = theirs.relaying.through[self._ourselves] = relay
            else:
                self._dialled.add(peer)

    async def _relay_of(self, address: Address, peer: PeerId) -> PeerId:
        """Connects to the relay in an address, and returns it. Raises ``UnreachableError`` if it refuses."""
        relay_address = address.partition(CIRCUIT)[0]
        relay = relay_address.rpartition("/p2p/")[2]
        if relay == self._ourselves or self.is_relayed(relay):
            raise UnreachableError(f"{relay} is no relay for this host")
        if relay not in self.links:
            await self._dial(relay_address, relay)
        at_relay = self._hosts[relay].connections
        if peer not in at_relay.links or not at_relay.relaying.takes(self._ourselves, peer):
            raise UnreachableError(f"the relay {relay} refused: the peer has no place there")
        return relay

    async def prove(self, address: Address, deadline_seconds: float) -> None:
        with deadline(deadline_seconds, f"dialling {address} anew"):
            await anyio.sleep(2 * max(self._conditions.delay_seconds))
            ends = (address, f"{address}/p2p/") if "/p2p/" not in address else (address,)
            target = next((h for h in self._hosts.values() if h.connections.address.startswith(ends)), None)
            if target is None or not target.is_running:
                raise UnreachableError(f"no host listens at {address}")
            if not target.connections.can_be_dialled or self._conditions.is_partitioned(
                self._ourselves, target.peer_id
            ):
                await anyio.sleep_forever()
            if self._host.handshake is not None or target.handshake is not None:
                dialler, dialled = (self._ourselves, self._host.handshake), (target.peer_id, target.handshake)
                delay_seconds = max(self._conditions.delay_seconds)
                await perform_handshake(dialler, dialled, address, delay_seconds=delay_seconds)

    async def reserve(self, relay: PeerId, deadline_seconds: float) -> float:
        with deadline(deadline_seconds, f"reserving at {relay}"):
            await anyio.sleep(2 * max(self._conditions.delay_seconds))
            if relay not in self.dialled():
                raise UnreachableError(f"{relay} is no relay: we did not dial it")
            at_relay = self._hosts[relay].connections
            seconds = at_relay.relaying.give(self._ourselves, relay)
            self.relaying.places[relay] = at_relay.address, anyio.current_time() + seconds
            return seconds

    def dialled(self) -> list[PeerId]:
        return [peer for peer in self._dialled if peer in self.links and not self.is_relayed(peer)]

    def _link_with(self, target: LinkedHost) -> SimulatedLink:
        directions = {
            sender.peer_id: self._conditions.direction(
                sender.peer_id,
                receiver.peer_id,
                count_sent=sender.count_sent,
                count_received=receiver.count_received,
            )
            for sender, receiver in ((self._host, target), (target, self._host))
        }
        round_trip_seconds = sum(direction.delay() for direction in directions.values())
        return SimulatedLink(directions, round_trip_seconds=round_trip_seconds)

    # Links that stand

    def is_relayed(self, peer: PeerId) -> bool:
        return peer in self.links and peer in self.relaying.through

    def link_to(self, peer: PeerId) -> SimulatedLink:
        if peer not in self.links:
            raise UnreachableError(f"not connected to {peer}")
        return self.links[peer]

    def neighbours(self) -> list[Neighbour]:
        """Returns the ends of the connected hosts, as the flood uses them."""
        if self._neighbours is None:
            others = [(self._hosts[peer], link.directions[self._ourselves]) for peer, link in self.links.items()]
            self._neighbours = [(host.gossip, direction, host.scores[self._ourselves]) for host, direction in others]
        return self._neighbours

    def reached(self) -> list[PeerId]:
        """Returns the running hosts that this one reaches over connections that carry, itself among them."""
        reached, frontier, is_whole = {self._ourselves}, [self._ourselves], self._conditions.is_whole
        while frontier:
            here = frontier.pop()
            there = self._hosts[here].connections.links.keys() - reached
            new = there if is_whole else {peer for peer in there if not self._conditions.is_cut(peer, here)}
            reached |= new
            frontier.extend(new)
        return sorted(reached)

    # Links that end

    def unlink(self, peer: PeerId, because: str) -> None:
        link = self.links.pop(peer, None)
        if link is not None:
            other = self._hosts[peer].connections
            other.links.pop(self._ourselves, None)
            self._neighbours = other._neighbours = None
            link.fail(because)
            self._dialled.discard(peer)
            for end, gone in ((self, peer), (other, self._ourselves)):
                for lost in end.relaying.unlinked(gone):
                    end.unlink(lost, f"the relay {gone} is gone")

    def give_up_cut_links(self) -> None:
        """Breaks the links that are cut now and stay so for ``DETECTION_SECONDS``."""
        for peer, link in self.links.items():
            if self._conditions.is_partitioned(self._ourselves, peer):
                self._host.require_running().start_soon(self._give_up, peer, link)

    async def _give_up(self, peer: PeerId, link: SimulatedLink) -> None:
        await anyio.sleep(DETECTION_SECONDS)
        if self.links.get(peer) is link and self._conditions.is_partitioned(self._ourselves, peer):
            self.unlink(peer, f"no sign of {peer} for {DETECTION_SECONDS:g} s")

    def wake(self) -> None:
        for link in self.links.values():
            link.wake()
