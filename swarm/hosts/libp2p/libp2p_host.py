"""A real host: py-libp2p over TCP + Noise + Yamux, with GossipSub and Kad-DHT.

This module makes the parts and starts them: ``connecting`` (where it listens, how it dials, what runs before a
connection stands), ``relaying`` (how a host that cannot be dialled is reached), ``streams``, ``gossipsub``, and
``kad_dht``.

Guarantees beyond ``swarm.host``: every wait for a peer ends at its deadline with an error of ours; an exception that a
peer causes in the library is counted in ``failures`` and ends at most that peer's stream or connection; an exception of
our own handlers, validators and receivers is raised out of ``run``. It must run on trio:
``anyio.run(main, backend="trio")``.

py-libp2p is pinned to 0.8.1 and used in ``swarm.hosts.libp2p`` alone. The header of each of those modules says what it
changes of the library and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import Yamux

from protocol import limits
from protocol.errors import UnreachableError
from protocol.identity import NodeKey
from protocol.meeting_points import multihash
from swarm.deadlines import deadline
from swarm.host import (
    Address,
    Handshake,
    LanSwarm,
    PeerId,
    Receiver,
    Relaying,
    Stream,
    StreamHandler,
    Traffic,
    Validator,
)
from swarm.hosts import MAX_BLOCKED_PEERS
from swarm.hosts.bandwidth import Bandwidth
from swarm.hosts.lan_neighbours import LanNeighbours
from swarm.hosts.libp2p.connecting.dialling import Dialling
from swarm.hosts.libp2p.connecting.listening import Listening
from swarm.hosts.libp2p.connecting.network import IdentifyingHost, new_network
from swarm.hosts.libp2p.connecting.upgrading import Upgrader
from swarm.hosts.libp2p.containment import Failures, quieten_library_logs, run_contained
from swarm.hosts.libp2p.doorway import Doorway
from swarm.hosts.libp2p.gossipsub.mesh import Mesh
from swarm.hosts.libp2p.gossipsub.pubsub import VerdictPubsub
from swarm.hosts.libp2p.kad_dht import BoundedDht, find_providers
from swarm.hosts.libp2p.relaying.traversal import Traversal
from swarm.hosts.libp2p.streams import Libp2pStreams
from swarm.hosts.libp2p.transport import Meter, MeteredTcp
from swarm.hosts.names import resolve
from swarm.hosts.unwrapping import unwrapped
from swarm.recent import Recent

CONNECTIONS = 300
FLUSH_SECONDS = 0.5  # at a normal exit, for messages just published (a goodbye) to reach the sockets

quieten_library_logs()


class Libp2pHost:
    """One ``swarm.host.Host`` on real sockets.

    ``listen`` are multiaddrs such as /ip4/0.0.0.0/tcp/4001; port 0 takes a free port. 0.0.0.0, every interface, takes
    the same port over IPv6 too, where the machine has IPv6 and the port is free there. ``mesh_degree`` is the number of
    peers to which a gossiped message is forwarded. ``handshake`` is that of a private cluster. ``bandwidth`` limits
    what all sockets send and receive together. ``faults`` counts, by reason, the failures of peers that stream handlers
    met.
    """

    def __init__(
        self,
        key: NodeKey,
        listen: Sequence[str],
        *,
        mesh_degree: int = 4,
        lan_discovery: bool = False,
        lan_swarm: LanSwarm | None = None,
        connections: int = CONNECTIONS,
        handshake: Handshake | None = None,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.failures = Failures()
        self._lan = LanNeighbours(wanted=lan_discovery, swarm=lan_swarm)
        self._tasks: TaskGroup | None = None
        self._blocked: Recent[ID, None] = Recent(MAX_BLOCKED_PEERS)
        self._meter = Meter(bandwidth=bandwidth or Bandwidth())
        self._doorway = Doorway(self.failures)
        self._listening = Listening(listen, self._meter, self._doorway, self.failures)
        tcp = MeteredTcp(self._meter, self._listening.source_of)
        key_pair = create_new_key_pair(seed=key.private_bytes)
        upgrader = Upgrader(key_pair, self._blocked, handshake, self._meter, self.failures)
        self._network = new_network(key_pair, tcp, upgrader, self._doorway, connections=connections)
        self._host = IdentifyingHost(
            self._network, addrs_factory=self._listening.advertised, disable_identify_address_discovery=True
        )
        self._streams = Libp2pStreams(
            self._network,
            self._host,
            handshake,
            failures=self.failures,
            faults=self.faults,
            on_bug=self._raise_out_of_run,
        )
        self._traversal = Traversal(
            self._network,
            self.open_stream,
            self.failures,
            start=self._start,
            source_of=self._listening.listening_at,
        )
        self._dialling = Dialling(self._network, tcp, self._traversal, self._blocked)
        self._dht = BoundedDht(self._host, self.failures)
        mesh = Mesh(mesh_degree)
        self._pubsub = VerdictPubsub(self._host, mesh, self._raise_out_of_run, self.faults, self._blocked)

    @property
    def peer_id(self) -> PeerId:
        return str(self._network.get_peer_id())

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        if self._tasks is not None:
            raise RuntimeError("run() a host once: make another with the same key")
        await self._listening.take(self._network)
        with unwrapped():
            async with anyio.create_task_group() as self._tasks:
                try:
                    async with self._services(), self._lan.discovering(self.peer_id, self.addresses()):
                        yield
                finally:
                    self._tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[None]:
        tasks = self._running()
        self._host.dht, self._host.failures, self._host.tasks = self._dht, self.failures, tasks
        try:
            async with (
                run_contained(self._network, self.failures),
                run_contained(self._dht, self.failures),
                run_contained(self._pubsub, self.failures),
                run_contained(self._pubsub.mesh, self.failures),
            ):
                await self._pubsub.wait_until_ready()
                self._traversal.register(self.handle, self._pubsub)
                self._listening.serve(tasks)
                yield
                await self._pubsub.flush(FLUSH_SECONDS)
        finally:
            with anyio.CancelScope(shield=True):
                await self._meter.close_all()

    def _running(self) -> TaskGroup:
        if self._tasks is None:
            raise UnreachableError(f"{self.peer_id} is not running yet")
        return self._tasks

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        self._running().start_soon(function, *arguments)

    def _raise_out_of_run(self, bug: Exception) -> None:
        async def reraise() -> None:
            raise bug

        self._running().start_soon(reraise)

    # Addresses and peers

    def addresses(self) -> Sequence[Address]:
        return self._listening.addresses(self.peer_id, self._traversal.place_addresses())

    def announce_also(self, addresses: Sequence[Address]) -> None:
        self._listening.announce_also(addresses)

    def peers(self) -> Sequence[PeerId]:
        return [str(peer) for peer in self._network.connections if self._network.connection_to(peer) is not None]

    def remote_ip(self, peer: PeerId) -> str:
        muxer = self._muxer(peer)
        remote = muxer.get_remote_address() if muxer is not None else None
        return remote[0] if remote is not None else ""

    def round_trip_seconds(self, peer: PeerId) -> float | None:
        muxer = self._muxer(peer)
        return (muxer.rtt() or None) if muxer is not None else None

    def _muxer(self, peer: PeerId) -> Yamux | None:
        connection = self._network.connection_to(_peer_id(peer))
        return cast(Yamux, connection.muxed_conn) if connection is not None else None

    def is_relayed(self, peer: PeerId) -> bool:
        return self._traversal.is_relayed(peer)

    def heard_on_lan(self) -> Sequence[Address]:
        return self._lan.heard()

    def traffic(self) -> Traffic:
        return Traffic(self._meter.sent_bytes, self._meter.received_bytes)

    # Connections

    async def resolve(self, name: Address, *, deadline_seconds: float) -> Sequence[Address]:
        return await resolve(name, deadline_seconds=deadline_seconds)

    async def connect(self, address: Address, *, deadline_seconds: float) -> PeerId:
        self._running()
        return await self._dialling.connect(address, deadline_seconds)

    @property
    def proves(self) -> bool:
        return True

    async def prove(self, address: Address, *, deadline_seconds: float) -> None:
        await self._dialling.prove(address, deadline_seconds)

    async def reserve(self, relay: PeerId, *, deadline_seconds: float) -> float:
        return await self._traversal.reserve(relay, deadline_seconds)

    def serve_as_relay(self, admits: Callable[[PeerId], bool] | None) -> None:
        self._traversal.relay.admits = admits

    def relaying(self) -> Relaying:
        return self._traversal.relaying()

    async def disconnect(self, peer: PeerId) -> None:
        await self._network.close_peer(_peer_id(peer))

    def block(self, peer: PeerId) -> None:
        self._blocked[_peer_id(peer)] = None
        self._running().start_soon(self._network.close_peer, _peer_id(peer))

    # Streams

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        self._streams.handle(protocol, handler)

    async def open_stream(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        return await self._streams.open(peer, protocol, deadline_seconds=deadline_seconds)

    # Gossip and provider records

    def gossip_score(self, peer: PeerId, topic: str) -> float:
        """Returns a peer's score in the mesh: first deliveries add, rejected messages subtract, both decay."""
        return self._pubsub.mesh.peer_scorer.topic_score(_peer_id(peer), topic)

    async def subscribe(self, topic: str, validate: Validator, on_message: Receiver) -> None:
        self._running()
        await self._pubsub.receive_topic(topic, validate, on_message)

    async def publish(self, topic: str, message: bytes) -> None:
        if len(message) > limits.ANNOUNCEMENT_BYTES:
            raise ValueError(f"message of {len(message)} bytes; at most {limits.ANNOUNCEMENT_BYTES} can be published")
        self._running()
        await self._pubsub.publish(topic, message)

    async def provide(self, key: bytes, *, deadline_seconds: float) -> None:
        self._running()
        with deadline(deadline_seconds, f"providing {key.hex()[:16]}"):
            await self._dht.provider_store.provide(multihash(key))

    def prefer(self, known: Callable[[], Collection[PeerId]]) -> None:
        self._dht.provider_store.known = self._pubsub.mesh.known = known

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        self._running()
        with deadline(deadline_seconds, f"looking for providers of {key.hex()[:16]}"):
            return await find_providers(self._dht, multihash(key), limit=limit)


@lru_cache(maxsize=1024)  # base58 in Python takes a while, and every second all connections are looked at
def _peer_id(peer: PeerId) -> ID:
    return ID.from_string(peer)
