"""A real host: py-libp2p over TCP + Noise + Yamux, with GossipSub and Kad-DHT.

Guarantees beyond ``swarm.host``: every wait for a peer ends at its deadline with an error of ours; an exception that a
peer causes in the library is counted in ``failures`` and ends at most that peer's stream or connection; an exception of
our own handlers, validators and receivers is raised out of ``run``. It must run on trio:
``anyio.run(main, backend="trio")``.

py-libp2p is pinned to 0.8.1 and used in ``swarm.hosts.libp2p`` alone. The header of each of those modules says what it
changes of the library and why.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from libp2p.abc import INetConn, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.io.trio import TrioTCPStream
from libp2p.kad_dht.kad_dht import KadDHT
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.exceptions import MuxerUpgradeFailure, SecurityUpgradeFailure
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.exceptions import Error as MultiaddrError  # type: ignore[import-untyped]

from protocol import limits
from protocol.cluster.refusal import RefusalReason
from protocol.errors import RefusedError, StarlingError, TransportError, UnreachableError
from protocol.identity import NodeKey
from protocol.meeting_points import multihash
from swarm.address_groups import is_public
from swarm.host import Address, Handshake, PeerId, Receiver, Relaying, Stream, StreamHandler, Traffic, Validator
from swarm.hosts.deadlines import deadline
from swarm.hosts.lan import LanDiscovery
from swarm.hosts.libp2p.bandwidth import Bandwidth
from swarm.hosts.libp2p.containment import PEER_FAILURES, Failures, innermost_cause, quieten_library_logs, run_contained
from swarm.hosts.libp2p.doorway import Doorway
from swarm.hosts.libp2p.gossipsub.mesh import Mesh
from swarm.hosts.libp2p.gossipsub.pubsub import VerdictPubsub
from swarm.hosts.libp2p.kad_dht import BoundedDht, find_providers
from swarm.hosts.libp2p.libp2p_stream import Libp2pStream
from swarm.hosts.libp2p.private_network import PrivateNetworkError
from swarm.hosts.libp2p.relaying.circuit_messages import CIRCUIT
from swarm.hosts.libp2p.relaying.traversal import Traversal, is_relayed_connection
from swarm.hosts.libp2p.transport import (
    CONNECTIONS_PER_PEER,
    DoorwayNetwork,
    Listener,
    Meter,
    MeteredTcp,
    OtherProtocolError,
    Upgrader,
)
from swarm.hosts.names import resolve
from swarm.hosts.network_interfaces import NetworkInterfaces, dialable
from swarm.hosts.unwrapping import unwrapped

log = logging.getLogger(__name__)

CONNECTIONS = 300
BLOCKED_PEERS = 4096  # above that the earliest is let in again; as another identity it would be too
INCOMING_STREAMS_PER_PEER = 128
STREAM_END_SECONDS = 5.0  # for a peer to end its direction after our handler returned
HANDSHAKE_SECONDS = 10.0
_EVERY_IP4_INTERFACE = "/ip4/0.0.0.0/"
FLUSH_SECONDS = 0.5  # at a normal exit, for messages just published (a goodbye) to reach the sockets
ADDRESS_SECONDS = 3600  # for which the address of a peer that we dialled is kept for the DHT

quieten_library_logs()


class NoAutoConnector(AutoConnector):
    """Never dials: ``swarm.peers.discovery`` decides that. The library would dial every address that it ever heard."""

    async def maybe_connect(self) -> None:
        return

    def record_disconnect(self, peer_id: ID) -> None:
        return


class IdentifyingHost(BasicHost):
    """The library's host; the identification of new peers runs in our tasks, and adds them to the DHT."""

    dht: KadDHT
    failures: Failures
    tasks: TaskGroup

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        if peer_id not in self._identify_inflight and not self._has_cached_protocols(peer_id):
            self._identify_inflight.add(peer_id)
            self.tasks.start_soon(self._identify_contained, peer_id, reason)

    async def _identify_contained(self, peer_id: ID, reason: str) -> None:
        try:
            await self._identify_task_entry(peer_id, reason)
            await self.dht.add_peer(peer_id)
        except Exception as error:  # noqa: BLE001  the library, reading what a stranger sent
            self.failures.note("identify", error)


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
        connections: int = CONNECTIONS,
        handshake: Handshake | None = None,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.failures = Failures()
        self._listen = [Multiaddr(address) for address in listen]
        self._lan_discovery = lan_discovery
        self._meter = Meter(bandwidth=bandwidth or Bandwidth())
        self._doorway = Doorway(self.failures)
        self._blocked: dict[ID, None] = {}  # the earliest first
        self._incoming: Counter[ID] = Counter()
        self._dialling: dict[ID, anyio.Event] = {}
        self._tasks: TaskGroup | None = None
        self._lan: LanDiscovery | None = None
        self._listening: list[Listener] = []
        self._interfaces = NetworkInterfaces()
        self._also_at: list[Address] = []  # addresses of a router
        self._handshake = handshake
        self._tcp = MeteredTcp(self._meter, self._source_of)
        self._network, self._host = self._build(key, connections)
        self._traversal = Traversal(
            self._network, self.open_stream, self.failures, start=self._start, source_of=self._listening_at
        )
        self._dht = BoundedDht(self._host, self.failures)
        self._pubsub = VerdictPubsub(self._host, Mesh(mesh_degree), self._raise_out_of_run, self.faults)

    def _build(self, key: NodeKey, connections: int) -> tuple[DoorwayNetwork, IdentifyingHost]:
        key_pair = create_new_key_pair(seed=key.private_bytes)
        peer_id = ID.from_pubkey(key_pair.public_key)
        peerstore = PeerStore()
        peerstore.add_key_pair(peer_id, key_pair)
        network = DoorwayNetwork(
            peer_id,
            peerstore,
            Upgrader(key_pair, self._blocked, self._handshake, self._meter, self.failures),
            transports=[self._tcp],
            retry_config=RetryConfig(max_retries=0),
            connection_config=ConnectionConfig(
                max_connections=connections,
                high_watermark=connections,
                min_connections=0,
                low_watermark=0,
                max_connections_per_peer=CONNECTIONS_PER_PEER,
                inbound_upgrade_timeout=HANDSHAKE_SECONDS,
                outbound_upgrade_timeout=HANDSHAKE_SECONDS,
            ),
            doorway=self._doorway,
        )
        network.auto_connector = NoAutoConnector(network)
        host = IdentifyingHost(network, addrs_factory=self._advertised, disable_identify_address_discovery=True)
        network.set_stream_handler(self._on_stream)
        return network, host

    @property
    def peer_id(self) -> PeerId:
        return str(self._network.get_peer_id())

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        if self._tasks is not None:
            raise RuntimeError("run() a host once: make another with the same key")
        await self._take_addresses()
        with unwrapped():
            async with anyio.create_task_group() as self._tasks:
                try:
                    async with self._services(), self._on_lan():
                        yield
                finally:
                    self._tasks.cancel_scope.cancel()

    async def _take_addresses(self) -> None:
        for address in self._listen:
            try:
                await self._take_address(address)
            except OSError as error:
                for earlier in self._listening:
                    await earlier.close()
                raise TransportError(
                    f"cannot listen on {address}: {error.strerror or error}. If another node runs here, "
                    f"stop it or listen on another port; port 0 takes a free one"
                ) from error
            if str(address).startswith(_EVERY_IP4_INTERFACE):
                port = self._listening[-1].get_addrs()[0].value_for_protocol("tcp")
                with suppress(OSError):
                    await self._take_address(Multiaddr(f"/ip6/::/tcp/{port}"))

    async def _take_address(self, address: Multiaddr) -> None:
        listener = Listener(self._on_connection, self._meter, self._doorway, self.failures)
        await listener.listen(address)
        self._listening.append(listener)
        self._network.listeners[str(address)] = listener

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
                for listener in self._listening:
                    tasks.start_soon(listener.serve)
                yield
                await self._pubsub.flush(FLUSH_SECONDS)
        finally:
            with anyio.CancelScope(shield=True):
                await self._meter.close_all()

    @asynccontextmanager
    async def _on_lan(self) -> AsyncIterator[None]:
        if not self._lan_discovery:
            yield
            return
        self._lan = LanDiscovery(
            self.peer_id, [a for a in self.addresses() if a.startswith("/ip4/") and not _is_loopback(a)]
        )
        await anyio.to_thread.run_sync(self._lan.start)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._lan.stop)

    def _running(self) -> TaskGroup:
        if self._tasks is None:
            raise UnreachableError(f"{self.peer_id} is not running yet")
        return self._tasks

    def _raise_out_of_run(self, bug: Exception) -> None:
        async def reraise() -> None:
            raise bug

        self._running().start_soon(reraise)

    # Addresses and peers

    def _advertised(self, _candidates: object = None) -> list[Multiaddr]:
        listening = [
            (str(a.value_for_protocol(a.protocols()[0].name)), int(str(a.value_for_protocol("tcp"))))
            for listener in self._listening
            for a in listener.get_addrs()
        ]
        return [
            Multiaddr(f"/{'ip6' if ':' in ip else 'ip4'}/{ip}/tcp/{port}")
            for ip, port in dialable(listening, self._interfaces.ips())
        ]

    def addresses(self) -> Sequence[Address]:
        places = self._traversal.place_addresses()
        return [*self._also_at, *(f"{address}/p2p/{self.peer_id}" for address in [*places, *self._advertised()])]

    def announce_also(self, addresses: Sequence[Address]) -> None:
        self._also_at = list(addresses)

    def _listening_at(self, ip: str) -> tuple[str, int] | None:
        """Returns the listening address of the same family as ``ip``."""
        for listener in self._listening:
            for maddr in listener.get_addrs():
                kind = maddr.protocols()[0].name
                if (kind == "ip6") == (":" in ip):
                    return str(maddr.value_for_protocol(kind)), int(str(maddr.value_for_protocol("tcp")))
        return None

    def _source_of(self, ip: str) -> tuple[str, int] | None:
        """Beyond our own network we dial from the listening port: routers then show where we could be met."""
        return self._listening_at(ip) if is_public(ip) else None

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        self._running().start_soon(function, *arguments)

    def peers(self) -> Sequence[PeerId]:
        return [str(peer) for peer in self._network.connections if self._connection(peer) is not None]

    def _connection(self, peer: ID) -> INetConn | None:
        live = [c for c in self._network.connections.get(peer, []) if not c.is_closed and not c.muxed_conn.is_closed]
        return min(live, key=is_relayed_connection, default=None)

    def remote_ip(self, peer: PeerId) -> str:
        connection = self._connection(_peer_id(peer))
        remote = cast(Yamux, connection.muxed_conn).get_remote_address() if connection is not None else None
        return remote[0] if remote is not None else ""

    def is_relayed(self, peer: PeerId) -> bool:
        return self._traversal.is_relayed(peer)

    def heard_on_lan(self) -> Sequence[Address]:
        return self._lan.heard() if self._lan is not None else []

    def traffic(self) -> Traffic:
        return Traffic(self._meter.sent_bytes, self._meter.received_bytes)

    def round_trip_seconds(self, peer: PeerId) -> float | None:
        connection = self._connection(_peer_id(peer))
        return (cast(Yamux, connection.muxed_conn).rtt() or None) if connection is not None else None

    # Connections

    async def resolve(self, name: Address, *, deadline_seconds: float) -> Sequence[Address]:
        return await resolve(name, deadline_seconds=deadline_seconds)

    async def connect(self, address: Address, *, deadline_seconds: float) -> PeerId:
        self._running()
        maddr, peer = _parse(address)
        if peer in self._blocked or peer == self._network.get_peer_id():
            raise UnreachableError(f"{address} is {'blocked here' if peer in self._blocked else 'this host itself'}")
        with deadline(deadline_seconds, f"connecting to {address}"):
            while self._connection(peer) is None and peer in self._dialling:
                await self._dialling[peer].wait()
            if self._connection(peer) is None:
                await self._dial(maddr, peer)
        return str(peer)

    async def _dial(self, maddr: Multiaddr, peer: ID) -> None:
        self._dialling[peer] = done = anyio.Event()
        try:
            if str(maddr).endswith(CIRCUIT):
                await self._dial_relayed(str(maddr).removesuffix(CIRCUIT), peer)
                return
            self._network.peerstore.add_addrs(peer, [maddr], ADDRESS_SECONDS)
            self._traversal.note_dialled(str(peer), maddr, await self._network.dial_addr(maddr, peer))
        except PEER_FAILURES as error:
            raise _connection_failure(f"{maddr}/p2p/{peer}", error) from error
        finally:
            del self._dialling[peer]
            done.set()

    async def _dial_relayed(self, relay_address: Address, peer: ID) -> None:
        if CIRCUIT in relay_address:
            raise UnreachableError("a relay is not dialled through another one")
        relay = await self.connect(relay_address, deadline_seconds=HANDSHAKE_SECONDS)
        await self._traversal.circuits.dial(relay, peer)

    @property
    def proves(self) -> bool:
        return True

    async def prove(self, address: Address, *, deadline_seconds: float) -> None:
        maddr, peer = _parse(address)
        with deadline(deadline_seconds, f"dialling {address} anew"):
            try:
                raw = await self._tcp.dial_anew(maddr)
                try:
                    await self._network.upgrader.upgrade_security(raw, True, peer)
                finally:
                    with anyio.CancelScope(shield=True):
                        await raw.close()
            except PEER_FAILURES as error:
                raise _connection_failure(address, error) from error

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
        self._pubsub.blacklisted_peers.add(_peer_id(peer))
        if len(self._blocked) > BLOCKED_PEERS:
            earliest = next(iter(self._blocked))
            del self._blocked[earliest]
            self._pubsub.blacklisted_peers.discard(earliest)
        self._running().start_soon(self._network.close_peer, _peer_id(peer))

    async def _on_connection(self, socket: TrioTCPStream) -> None:
        await self._network._handle_inbound_connection(socket, self._listen[0])

    # Streams

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        async def on_stream(stream: INetStream) -> None:
            await self._serve(handler, Libp2pStream(cast(NetStream, stream), str(stream.muxed_conn.peer_id)))

        self._host.set_stream_handler(TProtocol(protocol), on_stream)

    async def _serve(self, handler: StreamHandler, stream: Libp2pStream) -> None:
        try:
            await handler(stream)
        except StarlingError as failure:
            self.faults[failure.reason] += 1
            await stream.reset()
        except Exception as bug:  # noqa: BLE001  raised again out of run(), away from the library's tasks
            await stream.reset()
            self._raise_out_of_run(bug)
        else:
            await stream.finish(linger_seconds=STREAM_END_SECONDS)

    async def _on_stream(self, stream: INetStream) -> None:
        """Bounds incoming streams and contains failures, between the library's multiplexer and its negotiation."""
        peer = stream.muxed_conn.peer_id
        refused = self._handshake is not None and self._handshake.refusal(str(peer)) is not None
        if refused or self._incoming[peer] >= INCOMING_STREAMS_PER_PEER:
            await stream.reset()
            return
        self._incoming[peer] += 1
        try:
            await self._host._swarm_stream_handler(stream)
        except Exception as error:  # noqa: BLE001  the library, serving a stranger
            self.failures.note("incoming stream", error)
            await stream.reset()
        finally:
            self._incoming[peer] -= 1
            if not self._incoming[peer]:
                del self._incoming[peer]

    async def open_stream(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        if self._connection(_peer_id(peer)) is None:
            raise UnreachableError(f"not connected to {peer}")
        if self._handshake is not None and self._handshake.refusal(peer) is not None:
            raise UnreachableError(f"{peer} is no longer a member of this cluster")
        with deadline(deadline_seconds, f"opening {protocol} to {peer}"):
            try:
                stream = await self._host.new_stream(_peer_id(peer), [TProtocol(protocol)])
            except PEER_FAILURES as error:
                raise UnreachableError(f"{peer} opened no {protocol}: {_reasons(error)}") from error
        return Libp2pStream(cast(NetStream, stream), peer)

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

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        self._running()
        with deadline(deadline_seconds, f"looking for providers of {key.hex()[:16]}"):
            return await find_providers(self._dht, multihash(key), limit=limit)


def _parse(address: Address) -> tuple[Multiaddr, ID]:
    """Splits an address into the part to dial and the peer expected there."""
    where, separator, peer = address.rpartition("/p2p/")
    if not separator:
        raise UnreachableError(f"{address} names no peer; an address ends in /p2p/<peer id>")
    try:
        return Multiaddr(where), _peer_id(peer)
    except (MultiaddrError, ValueError) as error:
        raise UnreachableError(f"{address} is not an address: {error}") from error


def _peer_id(peer: PeerId) -> ID:
    return ID.from_string(peer)


def _is_loopback(address: Address) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))


def _connection_failure(address: Address, error: BaseException) -> UnreachableError:
    """Returns the error for a dial that failed, with a remedy where the failure shows one."""
    cause = innermost_cause(error)
    if isinstance(cause, RefusedError):
        return RefusedError(f"{address}: {cause}", cause.reason)
    if isinstance(cause, PrivateNetworkError):
        return RefusedError(
            f"cannot connect to {address}: {cause}. It is in no private cluster or in another one, or the key was "
            "changed: ask the cluster's owner for a new invite",
            RefusalReason.WRONG_PSK,
        )
    greeting = isinstance(error.__cause__, SecurityUpgradeFailure) and not isinstance(cause, OtherProtocolError)
    hint = " (a host of a private cluster, which needs an invite, answers so, as does a full host)" if greeting else ""
    if isinstance(error.__cause__, MuxerUpgradeFailure):
        hint = (
            f" (it closed once it knew this node's key: it has blocked it, or {CONNECTIONS_PER_PEER} connections with "
            "this key are open already, as where two nodes use one key)"
        )
    return UnreachableError(f"cannot connect to {address}: {_reasons(error)}{hint}")


def _reasons(error: BaseException) -> str:
    cause = innermost_cause(error)
    return str(cause) or type(cause).__name__
