"""A host on the Go libp2p daemon ``p2pd``, which hivemind's wheel carries: TCP and QUIC, GossipSub, Kad-DHT, relays.

It fulfils ``swarm.host`` except for what the daemon does not offer; docs/hosts.md has the list with its consequences:
no private cluster (no pre-shared key, no handshake before the multiplexer), no verdict before a message is forwarded
(``daemon_gossip``), no half of a stream (``go_stream``), no bounds on what strangers open in the daemon, no refusal of
a connection: a blocked peer is dropped within ``LOOK_SECONDS`` of its connecting.

If the daemon ends, or sends what is no message of its protocol, ``run`` raises ``HostEndedError``. This package imports
no py-libp2p, so that the process needs neither its memory nor its time to start.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.exceptions import Error as MultiaddrError  # type: ignore[import-untyped]

from protocol import base58, limits
from protocol.errors import HostEndedError, MalformedError, ProtocolError, StarlingError, UnreachableError
from protocol.identity import NodeKey
from swarm.address_groups import groups_of
from swarm.host import Address, PeerId, Receiver, Relaying, Stream, StreamHandler, Traffic, Validator
from swarm.hosts.deadlines import deadline
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import LOCAL_SECONDS, Frames, close, is_process, rubbish
from swarm.hosts.go.daemon_gossip import PEER_ID_BYTES, DaemonGossip
from swarm.hosts.go.daemon_process import Daemon, find_daemon, running_daemon
from swarm.hosts.go.go_stream import GoStream, StreamTraffic
from swarm.hosts.go.publishing import Publishing
from swarm.hosts.go.round_trips import RoundTrips
from swarm.hosts.lan import LanDiscovery
from swarm.hosts.libp2p.bandwidth import Bandwidth
from swarm.hosts.names import resolve
from swarm.hosts.unwrapping import unwrapped

LOOK_SECONDS = 0.25  # between looks at who is connected
ADDRESSES_SECONDS = 10.0  # between looks at our own addresses
BLOCKED_PEERS = 4096  # above that the earliest is let in again; as another identity it would be too
INCOMING_STREAMS_PER_PEER = 128
INCOMING_STREAMS = 1024
STREAM_END_SECONDS = 5.0  # for a peer to end its direction after our handler returned
FLUSH_SECONDS = 0.5  # at a normal exit, for messages just published (a goodbye) to reach the daemon
LEAVING_SECONDS = 0.1  # and to leave it
CID_PREFIX = bytes.fromhex("01 55 12 20")  # CID version 1, raw, a sha2-256 multihash of 32 bytes
NOBODY_TO_ASK = "failed to find any peer in table"  # the daemon's DHT, when it knows no other


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
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._key = key
        self._listen = tuple(listen)
        self._home = home
        self._binary = binary or find_daemon()
        self._lan_discovery = lan_discovery
        self._lan: LanDiscovery | None = None
        self._traffic = StreamTraffic(bandwidth or Bandwidth())
        self._handlers: dict[str, StreamHandler] = {}
        self._incoming: Counter[PeerId] = Counter()
        self._blocked: dict[PeerId, None] = {}  # the earliest first
        self._connected: dict[PeerId, str] = {}  # peer → its IP address, empty if it is relayed
        self._texts: dict[bytes, PeerId] = {}  # of connected peers
        self._looks = self._look_taken = 0  # at who is connected: begun, and the number of the one that holds
        self._addresses: list[Address] = []
        self._also_at: list[Address] = []
        self._tasks: TaskGroup | None = None
        self._running_daemon: Daemon | None = None
        self._since_seconds: dict[PeerId, float] = {}  # of connected peers: when they were first seen
        self.gossip = DaemonGossip(
            key.peer_id,
            is_known=self._connected.__contains__,
            is_blocked=self._blocked.__contains__,
            block=self.block,
        )
        self._publishing = Publishing(lambda: max(self._since_seconds.values(), default=-math.inf))
        self._round_trips = RoundTrips(self.peers, self._open)

    @property
    def peer_id(self) -> PeerId:
        return self._key.peer_id

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        if self._tasks is not None:
            raise RuntimeError("run() a host once: make another with the same key")
        with unwrapped(), _as_one_end():
            async with running_daemon(self._binary, self._key, self._listen, self._home) as daemon:
                self._running_daemon = daemon
                async with (
                    await anyio.create_unix_listener(daemon.stream_socket, mode=0o600) as listener,
                    anyio.create_task_group() as self._tasks,
                ):
                    try:
                        await self._serve(daemon, listener, self._tasks)
                        async with self._on_lan():
                            yield
                            await self._publishing.flush(FLUSH_SECONDS)
                            await anyio.sleep(LEAVING_SECONDS)
                    finally:
                        self._tasks.cancel_scope.cancel()
                        for stream in list(self._traffic.open):
                            await stream.reset()

    async def _serve(self, daemon: Daemon, listener: SocketListener, tasks: TaskGroup) -> None:
        tasks.start_soon(listener.serve, self._on_incoming)
        tasks.start_soon(self._end_with_daemon, daemon)
        for protocol in self._handlers:
            self._register(daemon, protocol)
        await self._look_at_addresses()
        tasks.start_soon(self._look)
        tasks.start_soon(self._publishing.run, daemon.control)
        tasks.start_soon(self._round_trips.run)

    async def _end_with_daemon(self, daemon: Daemon) -> None:
        raise await daemon.wait_until_ended()

    @asynccontextmanager
    async def _on_lan(self) -> AsyncIterator[None]:
        if not self._lan_discovery:
            yield
            return
        own = [a for a in self.addresses() if a.startswith("/ip4/") and not _is_loopback(a) and "/p2p-circuit" not in a]
        self._lan = LanDiscovery(self.peer_id, own)
        await anyio.to_thread.run_sync(self._lan.start)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._lan.stop)

    def daemon_pid(self) -> int:
        """Returns the process id of the running daemon."""
        return self._daemon().pid

    def _daemon(self) -> Daemon:
        if self._running_daemon is None:
            raise UnreachableError(f"{self.peer_id} is not running yet")
        return self._running_daemon

    # Addresses and peers

    async def _look(self) -> None:
        """Keeps the lists of peers and of addresses, and drops blocked peers that connected."""
        addresses_at_seconds = anyio.current_time()
        while True:
            await anyio.sleep(LOOK_SECONDS)
            await self._look_at_peers()
            for peer in [p for p in self._connected if p in self._blocked]:
                await self.disconnect(peer)
            if anyio.current_time() - addresses_at_seconds >= ADDRESSES_SECONDS:
                addresses_at_seconds = anyio.current_time()
                await self._look_at_addresses()

    async def _look_at_peers(self) -> None:
        self._looks += 1
        number = self._looks
        answer = await self._daemon().control.request(messages.list_peers())
        if number < self._look_taken:
            return  # one that began later has answered already
        self._look_taken = number
        texts: dict[bytes, PeerId] = {}
        connected: dict[PeerId, str] = {}
        for peer in answer.peers:
            text = self._texts.get(peer.id) or base58.to_text(peer.id[:PEER_ID_BYTES])
            texts[peer.id] = text
            connected[text] = connected.get(text) or _ip_of(peer.addresses[0] if peer.addresses else b"")
        self._texts = texts
        now_seconds = anyio.current_time()
        self._since_seconds = {peer: self._since_seconds.get(peer, now_seconds) for peer in connected}
        self._connected.clear()
        self._connected.update(connected)

    async def _look_at_addresses(self) -> None:
        answer = await self._daemon().control.request(messages.identify())
        if answer.identity is None:
            raise rubbish(MalformedError("an answer without our addresses"))
        self._addresses = _dialable(answer.identity)

    def addresses(self) -> Sequence[Address]:
        return list(dict.fromkeys([*self._also_at, *self._addresses]))

    def peers(self) -> Sequence[PeerId]:
        return list(self._connected)

    def remote_ip(self, peer: PeerId) -> str:
        return self._connected.get(peer, "")

    def is_relayed(self, peer: PeerId) -> bool:
        return self._connected.get(peer) == ""

    def relaying(self) -> Relaying:
        """Returns at whom the daemon has taken places, which it does by itself; it relays for nobody."""
        places = [address for address in self._addresses if "/p2p-circuit" in address]
        return Relaying(relays=tuple({place.partition("/p2p-circuit")[0].rpartition("/")[2]: None for place in places}))

    def announce_also(self, addresses: Sequence[Address]) -> None:
        self._also_at = list(addresses)

    def serve_as_relay(self, admits: Callable[[PeerId], bool] | None) -> None:
        """Does nothing: the daemon's own service has no limits that suit us."""

    async def reserve(self, relay: PeerId, *, deadline_seconds: float) -> float:
        raise UnreachableError("the daemon p2pd takes places at relays by itself")

    def heard_on_lan(self) -> Sequence[Address]:
        return self._lan.heard() if self._lan is not None else []

    def traffic(self) -> Traffic:
        """Returns the bytes of streams and announcements; what the daemon sends of its own accord is not among them."""
        sent_bytes = self._traffic.sent_bytes + self._publishing.sent_bytes
        return Traffic(sent_bytes, self._traffic.received_bytes + self.gossip.received_bytes)

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
        where, peer = _parse(address)
        if peer in self._blocked or peer == self.peer_id:
            raise UnreachableError(f"{address} is {'blocked here' if peer in self._blocked else 'this host itself'}")
        if peer in self._connected:
            return peer
        request = messages.connect(base58.to_bytes(peer), where, timeout_seconds=_whole(deadline_seconds))
        with deadline(deadline_seconds, f"connecting to {address}"):
            answer = await control.request(request)
            if answer.error is not None:
                raise UnreachableError(f"cannot connect to {address}: {_first_line(answer.error)}")
            await self._look_at_peers()
        return peer

    async def disconnect(self, peer: PeerId) -> None:
        control = self._daemon().control
        with suppress(MalformedError):
            await control.request(messages.disconnect(base58.to_bytes(peer)))
        await self._look_at_peers()

    def block(self, peer: PeerId) -> None:
        self._blocked[peer] = None
        if len(self._blocked) > BLOCKED_PEERS:
            del self._blocked[next(iter(self._blocked))]
        if self._tasks is not None:
            self._tasks.start_soon(self.disconnect, peer)

    # Streams

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler
        if self._running_daemon is not None:
            self._register(self._running_daemon, protocol)

    def _register(self, daemon: Daemon, protocol: str) -> None:
        where = os.fsencode(daemon.stream_socket)
        answer = daemon.control.request_at_once(messages.handle_streams(where, protocol))
        if answer.error is not None:
            raise HostEndedError(f"the daemon p2pd serves no {protocol}: {answer.error}")

    async def _on_incoming(self, connection: SocketStream) -> None:
        """Serves one stream that the daemon hands over."""
        origin = await self._origin_of(connection)
        if origin is None:
            await close(connection)
            return
        (peer, network, protocol), left = origin
        handler = self._handlers.get(protocol)
        is_full = self._incoming[peer] >= INCOMING_STREAMS_PER_PEER or self._incoming.total() >= INCOMING_STREAMS
        if handler is None or peer in self._blocked or is_full:
            await close(connection)
            return
        self._incoming[peer] += 1
        try:
            if peer not in self._connected:
                await self._look_at_peers()
            await self._serve_stream(
                handler, GoStream(connection, peer, network, self._traffic, left=left, is_ours=False)
            )
        finally:
            self._incoming[peer] -= 1
            if not self._incoming[peer]:
                del self._incoming[peer]

    async def _origin_of(self, connection: SocketStream) -> tuple[tuple[PeerId, str, str], bytes] | None:
        """Returns (peer, its network, protocol) and what arrived behind; None if it is not from the daemon."""
        if not is_process(connection.extra(SocketAttribute.raw_socket), self._daemon().pid):
            self.faults["stranger on the socket"] += 1
            return None
        frames = Frames(connection)
        with anyio.move_on_after(LOCAL_SECONDS), suppress(HostEndedError):
            message = await frames.next()
            try:
                return _origin(messages.read_stream_origin(message)), frames.rest()
            except ProtocolError as error:
                self.faults[error.reason] += 1
        return None

    async def _serve_stream(self, handler: StreamHandler, stream: GoStream) -> None:
        try:
            await handler(stream)
        except StarlingError as failure:
            self.faults[failure.reason] += 1
            await stream.reset()
        except BaseException:
            await stream.reset()
            raise
        else:
            await stream.finish(linger_seconds=STREAM_END_SECONDS)

    async def open_stream(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        self._daemon()
        if peer not in self._connected:
            raise UnreachableError(f"not connected to {peer}")
        return await self._open(peer, protocol, deadline_seconds)

    async def _open(self, peer: PeerId, protocol: str, deadline_seconds: float) -> Stream:
        request = messages.open_stream(base58.to_bytes(peer), protocol, timeout_seconds=_whole(deadline_seconds))
        with deadline(deadline_seconds, f"opening {protocol} to {peer}"):
            connection, answer, frames = await self._daemon().control.open(request)
        if answer.error is not None or answer.stream is None:
            await close(connection)
            raise UnreachableError(f"{peer} opened no {protocol}: {_first_line(answer.error or 'no stream')}")
        return GoStream(
            connection, peer, _network(answer.stream.address), self._traffic, left=frames.rest(), is_ours=True
        )

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
        if self.gossip.published(message):
            self._publishing.put(topic, message)
        await anyio.lowlevel.checkpoint()

    async def provide(self, key: bytes, *, deadline_seconds: float) -> None:
        request = messages.provide(CID_PREFIX + key, timeout_seconds=_whole(deadline_seconds))
        with deadline(deadline_seconds, f"providing {key.hex()[:16]}"):
            answer = await self._daemon().control.request(request)
        if answer.error is not None and NOBODY_TO_ASK not in answer.error:
            raise UnreachableError(f"providing {key.hex()[:16]}: {_first_line(answer.error)}")

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        # One more than asked for, since this host may be one of them.
        timeout_seconds = max(1, math.floor(deadline_seconds) - 1)
        request = messages.find_providers(CID_PREFIX + key, count=limit + 1, timeout_seconds=timeout_seconds)
        found: dict[PeerId, list[Address]] = {}
        with deadline(deadline_seconds, f"looking for providers of {key.hex()[:16]}"):
            async with self._daemon().control.conversation(request) as (_, answer, frames):
                while answer.error is None and len(found) < limit:
                    try:
                        provider = messages.read_provider(await frames.next())
                    except ProtocolError as error:
                        raise rubbish(error) from error
                    if provider.is_end:
                        break
                    if provider.peer is not None and (addresses := _dialable(provider.peer)):
                        found[addresses[0].rpartition("/")[2]] = addresses
        found.pop(self.peer_id, None)
        return [address for addresses in found.values() for address in addresses]


@contextmanager
def _as_one_end() -> Iterator[None]:
    """Raises once what several tasks noticed: that the daemon ended."""
    try:
        yield
    except BaseExceptionGroup as group:
        ends, others = group.split(HostEndedError)
        if ends is None or others is not None:
            raise
        end: BaseException = ends
        while isinstance(end, BaseExceptionGroup):
            end = end.exceptions[0]
        raise end from None


_Origin = tuple[PeerId, str, str]


def _origin(origin: messages.StreamOrigin) -> _Origin:
    return base58.to_text(origin.peer[:PEER_ID_BYTES]), _network(origin.address), origin.protocol


def _dialable(peer: messages.DaemonPeer) -> list[Address]:
    """Returns the addresses of a peer over TCP, then those through relays, loopback last.

    QUIC is left out, since hosts of the other kind cannot dial it; daemons tell each other of it when they connect.
    """
    texts = [text for content in peer.addresses if (text := _text_of(content))]
    usable = [a for a in dict.fromkeys(texts) if "/tcp/" in a and not a.endswith(("/ws", "/wss"))]
    usable.sort(key=lambda address: ("/p2p-circuit" in address, _is_loopback(address)))
    return [f"{address}/p2p/{base58.to_text(peer.id[:PEER_ID_BYTES])}" for address in usable]


def _text_of(address: bytes) -> str:
    try:
        return str(Multiaddr(address))
    except (MultiaddrError, ValueError):
        return ""


def _ip_of(address: bytes) -> str:
    """Returns the IP address with which a multiaddr begins; empty for a relayed one."""
    text = _text_of(address)
    return text.split("/")[2] if text.startswith(("/ip4/", "/ip6/")) and "/p2p-circuit" not in text else ""


def _network(address: bytes) -> str:
    """Returns the IPv4 address, or the IPv6 /64, from which a peer is connected; empty if it is unknown."""
    ip = _ip_of(address)
    return groups_of(ip)[1].partition("/")[0] if ip else ""


def _parse(address: Address) -> tuple[bytes, PeerId]:
    """Splits an address into the part to dial, in binary form, and the peer expected there."""
    where, separator, peer = address.rpartition("/p2p/")
    if not separator or not where:
        raise UnreachableError(f"{address} names no peer at an address; an address ends in /p2p/<peer id>")
    try:
        base58.to_bytes(peer[: 2 * PEER_ID_BYTES])
        return Multiaddr(where).to_bytes(), peer
    except (MultiaddrError, MalformedError, ValueError) as error:
        raise UnreachableError(f"{address} is not an address: {error}") from error


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))


def _first_line(error: str) -> str:
    """Returns what the daemon says of a failure, in a line of bounded length."""
    return " ".join(error.split())[:300]


def _is_loopback(address: Address) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))
