"""One host of the simulated network: connections and streams, its part in the gossip, provider records.

Every call on a host that has crashed or left raises ``UnreachableError``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from protocol import limits
from protocol.errors import StarlingError, UnreachableError
from protocol.identity import NodeKey
from swarm.host import Address, Handshake, PeerId, Receiver, Relaying, Stream, StreamHandler, Traffic, Validator
from swarm.hosts.deadlines import deadline
from swarm.hosts.simulated.conditions import NetworkConditions
from swarm.hosts.simulated.flooding import GossipFlood
from swarm.hosts.simulated.gossip_ends import Neighbour, Score
from swarm.hosts.simulated.simulated_handshake import perform_handshake
from swarm.hosts.simulated.simulated_relaying import CIRCUIT, SimulatedRelaying
from swarm.hosts.simulated.simulated_streams import SimulatedLink, SimulatedStream
from swarm.hosts.unwrapping import unwrapped

DETECTION_SECONDS = 15.0  # until a cut connection is given up, as by the keep-alive of a real transport


class SimulatedHost:
    """One ``swarm.host.Host`` on a simulated network. Made by ``SimulatedNetwork.host``.

    ``hosts`` are all hosts of the network by peer id, this one among them; the network adds to them later. ``scores``
    counts verdicts by forwarding peer, ``faults`` the failures of peers that stream handlers met, by reason.
    """

    def __init__(
        self,
        key: NodeKey,
        address: Address,
        conditions: NetworkConditions,
        hosts: Mapping[PeerId, SimulatedHost],
        flood: GossipFlood,
        handshake: Handshake | None = None,
        *,
        can_be_dialled: bool = True,
    ) -> None:
        self.key = key
        self.handshake = handshake
        self.scores: defaultdict[PeerId, Score] = defaultdict(Score)
        self.faults: Counter[str] = Counter()
        self._address = address
        self._conditions = conditions
        self._hosts = hosts
        self._can_be_dialled = can_be_dialled
        self._relaying = SimulatedRelaying()
        self._dialled: set[PeerId] = set()
        self._also_at: list[Address] = []
        self._tasks: TaskGroup | None = None
        self._ended_because: str | None = None
        self._links: dict[PeerId, SimulatedLink] = {}
        self._blocked: set[PeerId] = set()
        self._handlers: dict[str, StreamHandler] = {}
        self._provided: defaultdict[bytes, dict[PeerId, Address]] = defaultdict(dict)
        self._flood = flood
        self._neighbours: list[Neighbour] | None = None  # None after every change of the links
        self.gossip = flood.join(self)

    @property
    def peer_id(self) -> PeerId:
        return self.key.peer_id

    @property
    def is_running(self) -> bool:
        return self._tasks is not None and self._ended_because is None

    @property
    def has_ended(self) -> bool:
        return self._ended_because is not None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        if self._tasks is not None or self.has_ended:
            raise RuntimeError("run() once a host: restart() gives a fresh one")
        with unwrapped():
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                try:
                    yield
                finally:
                    self.end("left the network")

    def end(self, because: str) -> None:
        if not self.has_ended:
            self._ended_because = because
            for peer in list(self._links):
                self._unlink(peer, f"{self.peer_id} {because}")
            if self._tasks is not None:
                self._tasks.cancel_scope.cancel(because)

    @property
    def running_tasks(self) -> TaskGroup | None:
        return self._tasks if self.is_running else None

    def _require_running(self) -> TaskGroup:
        if self._tasks is None or self.has_ended:
            raise UnreachableError(f"{self.peer_id} {self._ended_because or 'is not running yet'}")
        return self._tasks

    def addresses(self) -> Sequence[Address]:
        return [*self._also_at, *self._relaying.addresses(self.peer_id), self._address]

    def announce_also(self, addresses: Sequence[Address]) -> None:
        self._also_at = list(addresses)

    def is_relayed(self, peer: PeerId) -> bool:
        return peer in self._links and peer in self._relaying.through

    def peers(self) -> Sequence[PeerId]:
        return list(self._links)

    def remote_ip(self, peer: PeerId) -> str:
        is_direct = peer in self._links and not self.is_relayed(peer)
        return self._hosts[peer]._address.split("/")[2] if is_direct else ""

    def heard_on_lan(self) -> Sequence[Address]:
        nearby = [self._hosts.get(peer) for peer in self._conditions.same_lan(self.peer_id)]
        return [host._address for host in nearby if host is not None and host.is_running]

    def traffic(self) -> Traffic:
        return Traffic(self.gossip.sent_bytes, self.gossip.received_bytes)

    def count_sent(self, size_bytes: int) -> None:
        self.gossip.sent_bytes += size_bytes

    def count_received(self, size_bytes: int) -> None:
        self.gossip.received_bytes += size_bytes

    def round_trip_seconds(self, peer: PeerId) -> float | None:
        link = self._links.get(peer)
        return link.round_trip_seconds if link else None

    # Connections

    async def connect(self, address: Address, *, deadline_seconds: float) -> PeerId:
        self._require_running()
        peer = address.rpartition("/p2p/")[2]
        if peer in self._links:
            return peer
        if peer == self.peer_id or peer in self._blocked:
            raise UnreachableError(f"{address} is {'this host itself' if peer == self.peer_id else 'blocked here'}")
        with deadline(deadline_seconds, f"connecting to {address}"):
            await self._dial(address, peer)
        return peer

    async def _dial(self, address: Address, peer: PeerId) -> None:
        await anyio.sleep(2 * max(self._conditions.delay_seconds))
        self._require_running()
        if self._conditions.is_partitioned(self.peer_id, peer):
            await anyio.sleep_forever()
        target = self._hosts.get(peer)
        relay = await self._relay_of(address, peer) if CIRCUIT in address else None
        if target is None or not target.is_running or (relay is None and target._address != address):
            raise UnreachableError(f"no host listens at {address}")
        if relay is None and not target._can_be_dialled:
            await anyio.sleep_forever()
        if self.peer_id in target._blocked:
            raise UnreachableError(f"{address} refused the connection")
        if peer not in self._links and (self.handshake is not None or target.handshake is not None):
            delay_seconds = max(self._conditions.delay_seconds)
            await perform_handshake(
                (self.peer_id, self.handshake), (peer, target.handshake), target._address, delay_seconds=delay_seconds
            )
            self._require_running()
            target._require_running()
        if peer not in self._links:
            self._links[peer] = target._links[self.peer_id] = self._link_with(target)
            self._neighbours = target._neighbours = None
            if relay is not None:
                self._relaying.through[peer] = target._relaying.through[self.peer_id] = relay
            else:
                self._dialled.add(peer)

    async def _relay_of(self, address: Address, peer: PeerId) -> PeerId:
        """Connects to the relay in an address, and returns it. Raises ``UnreachableError`` if it refuses."""
        relay_address = address.partition(CIRCUIT)[0]
        relay = relay_address.rpartition("/p2p/")[2]
        if relay == self.peer_id or self.is_relayed(relay):
            raise UnreachableError(f"{relay} is no relay for this host")
        if relay not in self._links:
            await self._dial(relay_address, relay)
        if peer not in self._hosts[relay]._links or not self._hosts[relay]._relaying.takes(self.peer_id, peer):
            raise UnreachableError(f"the relay {relay} refused: the peer has no place there")
        return relay

    @property
    def proves(self) -> bool:
        return True

    async def prove(self, address: Address, *, deadline_seconds: float) -> None:
        self._require_running()
        with deadline(deadline_seconds, f"dialling {address} anew"):
            await anyio.sleep(2 * max(self._conditions.delay_seconds))
            target = self._hosts.get(address.rpartition("/p2p/")[2])
            if target is None or not target.is_running or target._address != address:
                raise UnreachableError(f"no host listens at {address}")
            if not target._can_be_dialled or self._conditions.is_partitioned(self.peer_id, target.peer_id):
                await anyio.sleep_forever()

    async def reserve(self, relay: PeerId, *, deadline_seconds: float) -> float:
        self._require_running()
        with deadline(deadline_seconds, f"reserving at {relay}"):
            await anyio.sleep(2 * max(self._conditions.delay_seconds))
            if relay not in self._links or self.is_relayed(relay) or relay not in self._dialled:
                raise UnreachableError(f"{relay} is no relay: we did not dial it")
            seconds = self._hosts[relay]._relaying.give(self.peer_id, relay)
            self._relaying.places[relay] = self._hosts[relay]._address, anyio.current_time() + seconds
            return seconds

    def serve_as_relay(self, admits: Callable[[PeerId], bool] | None) -> None:
        self._relaying.admits = admits

    def relaying(self) -> Relaying:
        return self._relaying.status()

    def _link_with(self, target: SimulatedHost) -> SimulatedLink:
        directions = {
            sender.peer_id: self._conditions.direction(
                sender.peer_id,
                receiver.peer_id,
                count_sent=sender.count_sent,
                count_received=receiver.count_received,
            )
            for sender, receiver in ((self, target), (target, self))
        }
        round_trip_seconds = sum(direction.delay() for direction in directions.values())
        return SimulatedLink(directions, round_trip_seconds=round_trip_seconds)

    def _refuses(self, peer: PeerId) -> bool:
        return self.handshake is not None and self.handshake.refusal(peer) is not None

    async def disconnect(self, peer: PeerId) -> None:
        self._unlink(peer, f"{self.peer_id} disconnected")
        await anyio.lowlevel.checkpoint()

    def block(self, peer: PeerId) -> None:
        self._blocked.add(peer)
        self._unlink(peer, f"{self.peer_id} disconnected")

    def _unlink(self, peer: PeerId, because: str) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            other = self._hosts[peer]
            other._links.pop(self.peer_id, None)
            self._neighbours = other._neighbours = None
            link.fail(because)
            self._dialled.discard(peer)
            for end, gone in ((self, peer), (other, self.peer_id)):
                for lost in end._relaying.unlinked(gone):
                    end._unlink(lost, f"the relay {gone} is gone")

    def give_up_cut_links(self) -> None:
        """Breaks the links that are cut now and stay so for ``DETECTION_SECONDS``."""
        for peer, link in self._links.items():
            if self._conditions.is_partitioned(self.peer_id, peer):
                self._require_running().start_soon(self._give_up, peer, link)

    async def _give_up(self, peer: PeerId, link: SimulatedLink) -> None:
        await anyio.sleep(DETECTION_SECONDS)
        if self._links.get(peer) is link and self._conditions.is_partitioned(self.peer_id, peer):
            self._unlink(peer, f"no sign of {peer} for {DETECTION_SECONDS:g} s")

    def wake(self) -> None:
        for link in self._links.values():
            link.wake()

    # Streams

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler

    async def open_stream(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        self._require_running()
        with deadline(deadline_seconds, f"opening {protocol} to {peer}"):
            return await self._negotiate(peer, protocol)

    async def _negotiate(self, peer: PeerId, protocol: str) -> SimulatedStream:
        link = self._link_to(peer)
        if self._refuses(peer):
            raise UnreachableError(f"{peer} is no longer a member of this cluster")
        await anyio.sleep(link.directions[self.peer_id].delay())
        if self._conditions.is_partitioned(self.peer_id, peer):
            await anyio.sleep_forever()
        link = self._link_to(peer)
        target = self._hosts[peer]
        if target._refuses(self.peer_id):
            raise UnreachableError(f"{peer} reset the stream")
        handler = target._handlers.get(protocol)
        if handler is None:
            raise UnreachableError(f"{peer} does not know {protocol}")
        ours, theirs = link.open_stream(self.peer_id)
        ours.network, theirs.network = (host._address.split("/")[2] for host in (target, self))
        if not self._conditions.is_silent(peer):
            target._require_running().start_soon(target._serve, handler, theirs)
        return ours

    def _link_to(self, peer: PeerId) -> SimulatedLink:
        if peer not in self._links:
            raise UnreachableError(f"not connected to {peer}")
        return self._links[peer]

    async def _serve(self, handler: StreamHandler, stream: SimulatedStream) -> None:
        try:
            await handler(stream)
        except StarlingError as failure:
            self.faults[failure.reason] += 1
            stream.fail(f"{self.peer_id} reset the stream")
        except BaseException:
            stream.fail(f"{self.peer_id} reset the stream")
            raise
        else:
            await stream.close()

    # Gossip

    async def subscribe(self, topic: str, validate: Validator, on_message: Receiver) -> None:
        self.gossip.topics[topic] = (validate, on_message)
        await anyio.lowlevel.checkpoint()

    async def publish(self, topic: str, message: bytes) -> None:
        if len(message) > limits.ANNOUNCEMENT_BYTES:
            raise ValueError(f"message of {len(message)} bytes; at most {limits.ANNOUNCEMENT_BYTES} can be published")
        self._require_running()
        self._flood.publish(self.gossip, topic, message)
        await anyio.lowlevel.checkpoint()

    def is_linked(self, peer: PeerId) -> bool:
        return peer in self._links

    def neighbours(self) -> list[Neighbour]:
        """Returns the ends of the connected hosts, as the flood uses them."""
        if self._neighbours is None:
            others = [(self._hosts[peer], link.directions[self.peer_id]) for peer, link in self._links.items()]
            self._neighbours = [(host.gossip, direction, host.scores[self.peer_id]) for host, direction in others]
        return self._neighbours

    # Provider records

    async def resolve(self, name: Address, *, deadline_seconds: float) -> Sequence[Address]:
        self._require_running()
        with deadline(deadline_seconds, f"looking up {name}"):
            await self._ask_dht()
        if not self._conditions.names.get(name):
            raise UnreachableError(f"{name} leads to no address of a peer")
        return list(self._conditions.names[name])

    async def provide(self, key: bytes, *, deadline_seconds: float) -> None:
        self._require_running()
        with deadline(deadline_seconds, f"providing {key.hex()[:16]}"):
            await self._ask_dht()
            for host in self._component():
                host._provided[key][self.peer_id] = self._address

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        self._require_running()
        found: dict[PeerId, Address] = {}
        with deadline(deadline_seconds, f"looking for providers of {key.hex()[:16]}"):
            await self._ask_dht()
            for host in self._component():
                found.update(host._provided[key])
                if len(found) > limit:  # one of them may be our own
                    break
        found.pop(self.peer_id, None)
        return list(found.values())[:limit]

    async def _ask_dht(self) -> None:
        """Takes two hops there and back: as long as one iterative look-up in a small network."""
        await anyio.sleep(4 * max(self._conditions.delay_seconds))

    def _component(self) -> list[SimulatedHost]:
        """The running hosts that this one reaches over connections that carry, itself among them."""
        reached, frontier, is_whole = {self.peer_id}, [self.peer_id], self._conditions.is_whole
        while frontier:
            here = frontier.pop()
            there = self._hosts[here]._links.keys() - reached
            new = there if is_whole else {peer for peer in there if not self._conditions.is_cut(peer, here)}
            reached |= new
            frontier.extend(new)
        return [self._hosts[peer] for peer in sorted(reached)]
