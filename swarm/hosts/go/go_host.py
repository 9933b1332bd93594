"""A host on the Go libp2p daemon ``p2pd``, which hivemind's wheel carries: TCP and QUIC, GossipSub, Kad-DHT, relays.

It fulfils ``swarm.host`` except for what the daemon does not offer; docs/hosts.md has the list with its consequences:
no private cluster (no pre-shared key, no handshake before the multiplexer), no verdict before a message is forwarded
(``daemon_gossip``), no half of a stream (``go_stream``), no bounds on what strangers open in the daemon, no refusal of
a connection: a blocked peer is dropped within ``daemon_view.LOOK_SECONDS`` of its connecting.

If the daemon ends, or sends what is no message of its protocol, ``run`` raises ``HostEndedError``. This package imports
no py-libp2p, so that the process needs neither its memory nor its time to start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
from anyio.abc import SocketListener, TaskGroup

from protocol import base58, limits
from protocol.errors import HostEndedError, MalformedError, UnreachableError
from protocol.identity import NodeKey
from swarm.deadlines import deadline
from swarm.host import Address, LanSwarm, PeerId, Receiver, Relaying, Stream, StreamHandler, Traffic, Validator
from swarm.hosts import MAX_BLOCKED_PEERS
from swarm.hosts.bandwidth import Bandwidth
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import close, one_line, whole_seconds
from swarm.hosts.go.daemon_addresses import split_address
from swarm.hosts.go.daemon_dht import DaemonDht
from swarm.hosts.go.daemon_gossip import DaemonGossip
from swarm.hosts.go.daemon_process import Daemon, find_daemon, running_daemon
from swarm.hosts.go.daemon_view import DaemonView
from swarm.hosts.go.publishing import Publishing
from swarm.hosts.go.round_trips import RoundTrips
from swarm.hosts.go.streams import GoStreams
from swarm.hosts.lan_neighbours import LanNeighbours
from swarm.hosts.names import resolve
from swarm.hosts.unwrapping import unwrapped
from swarm.recent import Recent

FLUSH_SECONDS = 0.5  # at a normal exit, for messages just published (a goodbye) to reach the daemon
LEAVING_SECONDS = 0.1  # and to leave it


class GoHost:
    """One ``swarm.host.Host`` on a daemon of its own.

    ``listen`` are multiaddrs such as /ip4/0.0.0.0/tcp/4001; the daemon takes the UDP port of the same number for QUIC.
    ``home`` is a folder in which the daemon's sockets may lie; without one they lie in a new temporary folder.
    ``bandwidth`` limits what all streams send and receive together; what the daemon itself sends (gossip, DHT) is not
    limited. ``faults`` counts, by reason, the failures of peers that stream handlers met.
    """

    def __init__(
        self,
        key: NodeKey,
        listen: Sequence[str],
        *,
        home: Path | None = None,
        binary: Path | None = None,
        lan_discovery: bool = False,
        lan_swarm: LanSwarm | None = None,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._key = key
        self._listen = tuple(listen)
        self._home = home
        self._binary = binary or find_daemon()
        self._lan = LanNeighbours(wanted=lan_discovery, swarm=lan_swarm)
        self._also_at: list[Address] = []
        self._tasks: TaskGroup | None = None
        self._running_daemon: Daemon | None = None
        self._blocked: Recent[PeerId, None] = Recent(MAX_BLOCKED_PEERS)
        self._view = DaemonView(self._daemon)
        self._streams = GoStreams(self._daemon, self._view, self._blocked, bandwidth or Bandwidth(), self.faults)
        self._dht = DaemonDht(key.peer_id, self._daemon)
        self.gossip = DaemonGossip(
            key.peer_id,
            is_known=self._view.connected.__contains__,
            is_blocked=self._blocked.__contains__,
            block=self.block,
        )
        self._publishing = Publishing(self._view.newest_at_seconds)
        self._round_trips = RoundTrips(self.peers, self._streams.open)

    @property
    def peer_id(self) -> PeerId:
        return self._key.peer_id

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        if self._tasks is not None:
            raise RuntimeError("run() a host once: make another with the same key")
        with unwrapped():
            async with running_daemon(self._binary, self._key, self._listen, self._home) as daemon:
                self._running_daemon = daemon
                async with (
                    _as_one_end(daemon),
                    await anyio.create_unix_listener(daemon.stream_socket, mode=0o600) as listener,
                    anyio.create_task_group() as self._tasks,
                ):
                    try:
                        await self._serve(daemon, listener, self._tasks)
                        async with self._lan.discovering(self.peer_id, self.addresses()):
                            yield
                            await self._publishing.flush(FLUSH_SECONDS)
                            await anyio.sleep(LEAVING_SECONDS)
                    finally:
                        self._tasks.cancel_scope.cancel()
                        await self._streams.reset_all()

    async def _serve(self, daemon: Daemon, listener: SocketListener, tasks: TaskGroup) -> None:
        tasks.start_soon(listener.serve, self._streams.on_incoming)
        tasks.start_soon(self._end_with_daemon, daemon)
        self._streams.register_all()
        await self._view.look_at_addresses()
        tasks.start_soon(self._view.run, self._drop_blocked)
        tasks.start_soon(self._publishing.run, daemon.control)
        tasks.start_soon(self._round_trips.run)

    async def _end_with_daemon(self, daemon: Daemon) -> None:
        raise await daemon.wait_until_ended()

    def daemon_pid(self) -> int:
        """Returns the process id of the running daemon."""
        return self._daemon().pid

    def _daemon(self) -> Daemon:
        if self._running_daemon is None:
            raise UnreachableError(f"{self.peer_id} is not running yet")
        return self._running_daemon

    # Addresses and peers

    def addresses(self) -> Sequence[Address]:
        return list(dict.fromkeys([*self._also_at, *self._view.addresses]))

    def peers(self) -> Sequence[PeerId]:
        return list(self._view.connected)

    def remote_ip(self, peer: PeerId) -> str:
        return self._view.connected.get(peer, "")

    def is_relayed(self, peer: PeerId) -> bool:
        return self._view.connected.get(peer) == ""

    def relaying(self) -> Relaying:
        """Returns the relays at which the daemon has places. It takes them once AutoNAT of other daemons has told it
        that it cannot be dialled; it relays for nobody."""
        return Relaying(relays=self._view.relays(), takes_places=False)

    def announce_also(self, addresses: Sequence[Address]) -> None:
        self._also_at = list(addresses)

    def serve_as_relay(self, admits: Callable[[PeerId], bool] | None) -> None:
        """Does nothing: the daemon's own service has no limits that suit us."""

    async def reserve(self, relay: PeerId, *, deadline_seconds: float) -> float:
        raise UnreachableError('the Go host takes no place at a relay: behind a router, set swarm.host = "py"')

    def heard_on_lan(self) -> Sequence[Address]:
        return self._lan.heard()

    def traffic(self) -> Traffic:
        """Returns the bytes of streams and announcements; what the daemon itself sends is not among them."""
        sent_bytes = self._streams.traffic.sent_bytes + self._publishing.sent_bytes
        return Traffic(sent_bytes, self._streams.traffic.received_bytes + self.gossip.received_bytes)

    def round_trip_seconds(self, peer: PeerId) -> float | None:
        return self._round_trips.of(peer)

    # Connections

    async def resolve(self, name: Address, *, deadline_seconds: float) -> Sequence[Address]:
        return await resolve(name, deadline_seconds=deadline_seconds)

    @property
    def proves(self) -> bool:
        return False  # the daemon opens no second connection to a peer

    async def prove(self, address: Address, *, deadline_seconds: float) -> None:
        raise UnreachableError("the daemon p2pd opens no second connection to a peer")

    async def connect(self, address: Address, *, deadline_seconds: float) -> PeerId:
        control = self._daemon().control
        where, peer = split_address(address)
        if peer in self._blocked or peer == self.peer_id:
            raise UnreachableError(f"{address} is {'blocked here' if peer in self._blocked else 'this host itself'}")
        if peer in self._view.connected:
            return peer
        request = messages.connect(base58.to_bytes(peer), where, timeout_seconds=whole_seconds(deadline_seconds))
        with deadline(deadline_seconds, f"connecting to {address}"):
            answer = await control.request(request)
            if answer.error is not None:
                raise UnreachableError(f"cannot connect to {address}: {one_line(answer.error)}")
            await self._view.look_at_peers()
        return peer

    async def disconnect(self, peer: PeerId) -> None:
        control = self._daemon().control
        with suppress(MalformedError):
            await control.request(messages.disconnect(base58.to_bytes(peer)))
        await self._view.look_at_peers()

    def block(self, peer: PeerId) -> None:
        self._blocked[peer] = None
        if self._tasks is not None:
            self._tasks.start_soon(self.disconnect, peer)

    async def _drop_blocked(self) -> None:
        for peer in [p for p in self._view.connected if p in self._blocked]:
            await self.disconnect(peer)

    # Streams

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        self._streams.handle(protocol, handler)
        if self._running_daemon is not None:
            self._streams.register(protocol)

    async def open_stream(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        self._daemon()
        if peer not in self._view.connected:
            raise UnreachableError(f"not connected to {peer}")
        return await self._streams.open(peer, protocol, deadline_seconds)

    # Gossip and provider records

    async def subscribe(self, topic: str, validate: Validator, on_message: Receiver) -> None:
        control, tasks = self._daemon().control, self._tasks
        assert tasks is not None
        connection, answer, frames = await control.open(messages.subscribe(topic))
        if answer.error is not None:
            await close(connection)
            raise HostEndedError(f"the daemon p2pd does not subscribe to {topic}: {answer.error}")

        async def hear() -> None:
            try:
                await self.gossip.hear(frames, validate, on_message)
            finally:
                await close(connection)

        tasks.start_soon(hear)

    async def publish(self, topic: str, message: bytes) -> None:
        if len(message) > limits.ANNOUNCEMENT_BYTES:
            raise ValueError(f"message of {len(message)} bytes; at most {limits.ANNOUNCEMENT_BYTES} can be published")
        self._daemon()
        if self.gossip.note(message):
            self._publishing.put(topic, message)
        await anyio.lowlevel.checkpoint()

    async def provide(self, key: bytes, *, deadline_seconds: float) -> None:
        await self._dht.provide(key, deadline_seconds=deadline_seconds)

    def prefer(self, known: Callable[[], Collection[PeerId]]) -> None:
        """Does nothing: mesh and records are the daemon's."""

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        return await self._dht.find_providers(key, limit=limit, deadline_seconds=deadline_seconds)


@asynccontextmanager
async def _as_one_end(daemon: Daemon) -> AsyncIterator[None]:
    """Raises once what several tasks noticed: that the daemon ended, and how."""
    try:
        yield
    except BaseExceptionGroup as group:
        ends, others = group.split(HostEndedError)
        if ends is None or others is not None:
            raise
        end: BaseException = ends
        while isinstance(end, BaseExceptionGroup):
            end = end.exceptions[0]
        assert isinstance(end, HostEndedError)
        raise await daemon.end_behind(end) from None
