"""One host of the simulated network: its life, its streams, and its parts: connections, gossip, provider records.

Every call on a host that has crashed or left raises ``UnreachableError``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from protocol import limits
from protocol.errors import StarlingError, UnreachableError
from protocol.identity import NodeKey
from swarm.deadlines import deadline
from swarm.host import Address, Handshake, PeerId, Receiver, Relaying, Stream, StreamHandler, Traffic, Validator
from swarm.hosts.simulated.conditions import NetworkConditions
from swarm.hosts.simulated.flooding import GossipFlood
from swarm.hosts.simulated.gossip_ends import Neighbour, Score
from swarm.hosts.simulated.simulated_connections import SimulatedConnections
from swarm.hosts.simulated.simulated_dht import SimulatedDht
from swarm.hosts.simulated.simulated_streams import SimulatedStream
from swarm.hosts.unwrapping import unwrapped


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
        self._conditions = conditions
        self._hosts = hosts
        self._flood = flood
        self._also_at: list[Address] = []
        self._tasks: TaskGroup | None = None
        self._ended_because: str | None = None
        self._handlers: dict[str, StreamHandler] = {}
        self.connections = SimulatedConnections(self, address, hosts, conditions, can_be_dialled=can_be_dialled)
        self.dht = SimulatedDht(self.peer_id, self.connections, hosts, conditions)
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
            for peer in list(self.connections.links):
                self.connections.unlink(peer, f"{self.peer_id} {because}")
            if self._tasks is not None:
                self._tasks.cancel_scope.cancel(because)

    @property
    def running_tasks(self) -> TaskGroup | None:
        return self._tasks if self.is_running else None

    def require_running(self) -> TaskGroup:
        """Returns the host's tasks. Raises ``UnreachableError``, with the reason, unless it runs."""
        if self._tasks is None or self.has_ended:
            raise UnreachableError(f"{self.peer_id} {self._ended_because or 'is not running yet'}")
        return self._tasks

    def addresses(self) -> Sequence[Address]:
        return [*self._also_at, *self.connections.relaying.addresses(self.peer_id), self.connections.address]

    def announce_also(self, addresses: Sequence[Address]) -> None:
        self._also_at = list(addresses)

    def is_relayed(self, peer: PeerId) -> bool:
        return self.connections.is_relayed(peer)

    def peers(self) -> Sequence[PeerId]:
        return list(self.connections.links)

    def remote_ip(self, peer: PeerId) -> str:
        is_direct = peer in self.connections.links and not self.is_relayed(peer)
        return self._hosts[peer].connections.ip if is_direct else ""

    def heard_on_lan(self) -> Sequence[Address]:
        nearby = [self._hosts.get(peer) for peer in self._conditions.same_lan(self.peer_id)]
        return [host.connections.address for host in nearby if host is not None and host.is_running]

    def traffic(self) -> Traffic:
        return Traffic(self.gossip.sent_bytes, self.gossip.received_bytes)

    def count_sent(self, size_bytes: int) -> None:
        self.gossip.sent_bytes += size_bytes

    def count_received(self, size_bytes: int) -> None:
        self.gossip.received_bytes += size_bytes

    def round_trip_seconds(self, peer: PeerId) -> float | None:
        link = self.connections.links.get(peer)
        return link.round_trip_seconds if link else None

    # Connections

    async def connect(self, address: Address, *, deadline_seconds: float) -> PeerId:
        self.require_running()
        return await self.connections.connect(address, deadline_seconds)

    @property
    def proves(self) -> bool:
        return True

    async def prove(self, address: Address, *, deadline_seconds: float) -> None:
        self.require_running()
        await self.connections.prove(address, deadline_seconds)

    async def reserve(self, relay: PeerId, *, deadline_seconds: float) -> float:
        self.require_running()
        return await self.connections.reserve(relay, deadline_seconds)

    def serve_as_relay(self, admits: Callable[[PeerId], bool] | None) -> None:
        self.connections.relaying.admits = admits

    def relaying(self) -> Relaying:
        return replace(self.connections.relaying.status(), dialled=self.connections.dialled())

    async def disconnect(self, peer: PeerId) -> None:
        self.connections.unlink(peer, f"{self.peer_id} disconnected")
        await anyio.lowlevel.checkpoint()

    def block(self, peer: PeerId) -> None:
        self.connections.blocked.add(peer)
        self.connections.unlink(peer, f"{self.peer_id} disconnected")

    def give_up_cut_links(self) -> None:
        self.connections.give_up_cut_links()

    def wake(self) -> None:
        self.connections.wake()

    # Streams

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler

    async def open_stream(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        self.require_running()
        with deadline(deadline_seconds, f"opening {protocol} to {peer}"):
            return await self._negotiate(peer, protocol)

    async def _negotiate(self, peer: PeerId, protocol: str) -> SimulatedStream:
        link = self.connections.link_to(peer)
        if self._refuses(peer):
            raise UnreachableError(f"{peer} is no longer a member of this cluster")
        await anyio.sleep(link.directions[self.peer_id].delay())
        if self._conditions.is_partitioned(self.peer_id, peer):
            await anyio.sleep_forever()
        link = self.connections.link_to(peer)
        target = self._hosts[peer]
        if target._refuses(self.peer_id):
            raise UnreachableError(f"{peer} reset the stream")
        handler = target._handlers.get(protocol)
        if handler is None:
            raise UnreachableError(f"{peer} does not know {protocol}")
        ours, theirs = link.open_stream(self.peer_id)
        ours.network, theirs.network = (host.connections.ip for host in (target, self))
        if not self._conditions.is_silent(peer):
            target.require_running().start_soon(target._serve, handler, theirs)
        return ours

    def _refuses(self, peer: PeerId) -> bool:
        return self.handshake is not None and self.handshake.refusal(peer) is not None

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
        self.require_running()
        self._flood.publish(self.gossip, topic, message)
        await anyio.lowlevel.checkpoint()

    def is_linked(self, peer: PeerId) -> bool:
        return peer in self.connections.links

    def neighbours(self) -> list[Neighbour]:
        return self.connections.neighbours()

    # Provider records

    async def resolve(self, name: Address, *, deadline_seconds: float) -> Sequence[Address]:
        self.require_running()
        return await self.dht.resolve(name, deadline_seconds)

    async def provide(self, key: bytes, *, deadline_seconds: float) -> None:
        self.require_running()
        await self.dht.provide(key, deadline_seconds)

    def prefer(self, known: Callable[[], Collection[PeerId]]) -> None:
        """A simulated host keeps all provider records in any case."""
        self.gossip.known = known

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        self.require_running()
        return await self.dht.find_providers(key, limit, deadline_seconds)
