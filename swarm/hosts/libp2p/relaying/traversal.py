"""How a host that cannot be dialled is reached: its relay for others, its places at relays, hole punching.

Where a direct connection stands beside a relayed one, gossip moves to it, and both ends drop the relayed one after
``MOVE_SECONDS``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, cast

import anyio
from libp2p.abc import INetConn
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.peer.id import ID
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.rcmgr import Direction
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.utils.varint import encode_varint_prefixed

from protocol.errors import UnreachableError
from swarm.host import PeerId, Relaying, Stream, StreamHandler, tcp_address
from swarm.hosts.libp2p.connecting.network import DoorwayNetwork, is_relayed_connection
from swarm.hosts.libp2p.containment import PEER_FAILURES, Failures
from swarm.hosts.libp2p.gossipsub.send_queue import SendQueue
from swarm.hosts.libp2p.punching import Punching
from swarm.hosts.libp2p.relaying.circuit_messages import HOP_PROTOCOL, PUNCH_PROTOCOL, STOP_PROTOCOL, SocketAddress
from swarm.hosts.libp2p.relaying.circuits import Circuits
from swarm.hosts.libp2p.relaying.relay import Relay

MOVE_SECONDS: Final = 2.0  # for what is under way over the relayed connection

OpenStream = Callable[..., Awaitable[Stream]]


class Traversal:
    """Parts of one ``Libp2pHost``. ``start`` runs a function in a task of the host; ``source_of`` returns the host's
    listening address for dialling an IP address."""

    def __init__(
        self,
        network: DoorwayNetwork,
        open_stream: OpenStream,
        failures: Failures,
        *,
        start: Callable[..., None],
        source_of: Callable[[str], SocketAddress | None],
    ) -> None:
        self._network = network
        self._failures = failures
        self._start = start
        self._pubsub: Pubsub | None = None
        self._dialled: dict[PeerId, SwarmConn] = {}  # the connections that we dialled directly
        self.relay = Relay(open_stream, self._seen_at)
        self.circuits = Circuits(network, open_stream, self._on_relayed)
        self.punching = Punching(
            network,
            open_stream,
            failures,
            is_relayed=self.is_relayed,
            seen_at=lambda peer: self.circuits.seen_at.get(peer),
            own_addresses=self._own_addresses,
            source_of=source_of,
        )
        network.on_direct = self._on_direct

    def register(self, handle: Callable[[str, StreamHandler], None], pubsub: Pubsub) -> None:
        self._pubsub = pubsub
        handle(HOP_PROTOCOL, self.relay.on_stream)
        handle(STOP_PROTOCOL, self.circuits.on_stop)
        handle(PUNCH_PROTOCOL, self.punching.on_stream)

    def _live(self, peer: PeerId) -> list[INetConn]:
        return self._network.live(ID.from_string(peer))

    def is_relayed(self, peer: PeerId) -> bool:
        live = self._live(peer)
        return bool(live) and all(map(is_relayed_connection, live))

    def _seen_at(self, peer: PeerId) -> SocketAddress | None:
        """Returns where a peer is seen now: its address may have changed since it connected before."""
        direct = [c for c in self._live(peer) if not is_relayed_connection(c)]
        return cast(Yamux, direct[-1].muxed_conn).get_remote_address() if direct else None

    async def reserve(self, relay: PeerId, deadline_seconds: float) -> float:
        connection = self._dialled.get(relay)
        at = cast(Yamux, connection.muxed_conn).get_remote_address() if connection is not None else None
        if connection is None or connection.is_closed or at is None:
            raise UnreachableError(f"{relay} is no relay: we did not dial it")
        return await self.circuits.reserve(relay, f"{tcp_address(*at)}/p2p/{relay}", connection, deadline_seconds)

    def _places(self) -> dict[PeerId, str]:
        now_seconds = anyio.current_time()
        held = self.circuits.places.items()
        self.circuits.places = {
            relay: place
            for relay, place in held
            if place.ends_at_seconds > now_seconds and place.connection in self._live(relay)
        }
        return {relay: place.address for relay, place in self.circuits.places.items()}

    def place_addresses(self) -> list[str]:
        return list(self._places().values()) if self.circuits.places else []

    def _own_addresses(self) -> list[SocketAddress]:
        seen = [place.seen_at for place in self.circuits.places.values() if place.seen_at is not None]
        return list(dict.fromkeys(seen))

    def relaying(self) -> Relaying:
        self.relay.drop_departed()
        book = self.relay.book
        serves = self.relay.admits is not None
        dialled = tuple(p for p, c in self._dialled.items() if not c.is_closed and not c.muxed_conn.is_closed)
        return Relaying(
            serves, book.reservations, book.circuits, book.relayed_bytes, tuple(self._places()), dialled=dialled
        )

    def _on_relayed(self, peer: PeerId, dialled_us: bool) -> None:
        if dialled_us:
            self._start(self.punching.punch, peer)

    def _on_direct(self, connection: SwarmConn) -> None:
        """Whoever had it dialled, the library too: its DHT does so where a connection has ended."""
        peer = str(connection.muxed_conn.peer_id)
        if any(map(is_relayed_connection, self._live(peer))):
            self._start(self._move_over, connection)
        elif connection.direction == Direction.OUTBOUND:
            self._dialled = {each: c for each, c in self._dialled.items() if not c.is_closed}
            self._dialled[peer] = connection

    async def _move_over(self, direct: SwarmConn) -> None:
        peer = direct.muxed_conn.peer_id
        if self._pubsub is not None:
            try:
                await move_gossip(self._pubsub, peer)
            except PEER_FAILURES as error:
                self._failures.note("moving gossip", error)
        await anyio.sleep(MOVE_SECONDS)
        if direct.is_closed:
            return
        for connection in self._live(str(peer)):
            if is_relayed_connection(connection):
                await connection.close()


async def move_gossip(pubsub: Pubsub, peer: ID) -> None:
    """Sends gossip to a peer over a new stream, on its direct connection, from now on.

    The library has one such stream for each peer, and opens another only after it has forgotten the peer and its
    subscriptions: where both ends do that, one may forget what the other has just said again. Here both keep what they
    know.
    """
    stream = await pubsub.host.new_stream(peer, pubsub.protocols)
    await stream.write(encode_varint_prefixed(pubsub.get_hello_packet().SerializeToString()))
    former = pubsub.peer_queues.get(peer)
    if former is None:  # it is being registered, by the library
        await stream.reset()
        return
    queue = RpcQueue()
    queue._queue = SendQueue()  # type: ignore[assignment]
    pubsub.peers[peer], pubsub.peer_queues[peer] = stream, queue
    pubsub.manager.run_task(pubsub.handle_sending_messages, peer, stream, queue)
    former.close()
