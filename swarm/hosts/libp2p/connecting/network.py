"""The library's network and host, made for one key, with what the library's own lack.

- Connections that have not finished their handshake take no slot of those that have: they wait in a ``Doorway``. The
  library has one limit for both, so that as many silent sockets kept everybody out.
- The library dials no peer by itself, and looks up no names.
- The identification of new peers runs in tasks of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import libp2p.network.swarm as library
import trio
from anyio.abc import TaskGroup
from libp2p.abc import IMuxedConn, INetConn, IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.crypto.keys import KeyPair
from libp2p.host.basic_host import BasicHost
from libp2p.kad_dht.kad_dht import KadDHT
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from swarm.hosts.libp2p.connecting.upgrading import Upgrader
from swarm.hosts.libp2p.containment import Failures
from swarm.hosts.libp2p.doorway import Doorway
from swarm.hosts.libp2p.transport import CONNECTIONS_PER_PEER, MeteredSocket, MeteredTcp
from swarm.hosts.libp2p.yamux import SteadyYamux

HANDSHAKE_SECONDS = 10.0


def new_network(
    key_pair: KeyPair, tcp: MeteredTcp, upgrader: Upgrader, doorway: Doorway, *, connections: int
) -> DoorwayNetwork:
    """Returns the network of one key. It has ``connections`` at most."""
    peer_id = ID.from_pubkey(key_pair.public_key)
    peerstore = PeerStore()
    peerstore.add_key_pair(peer_id, key_pair)
    network = DoorwayNetwork(
        peer_id,
        peerstore,
        upgrader,
        transports=[tcp],
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
        doorway=doorway,
    )
    network.auto_connector = NoAutoConnector(network)
    return network


def is_relayed_connection(connection: INetConn) -> bool:
    return connection.get_connection_type() is ConnectionType.RELAYED


class DoorwayNetwork(Swarm):
    """The library's network; only connections that have finished their handshake count against its limit."""

    def __init__(self, *arguments: Any, doorway: Doorway, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_direct: Callable[[SwarmConn], None] = lambda connection: None  # a connection not through a relay stands
        self._doorway = doorway
        self._inbound_limiter = trio.CapacityLimiter(math.inf)  # ``max_connections`` holds when one is registered

    async def upgrade_inbound_raw_conn(self, raw_conn: IRawConnection, maddr: Multiaddr) -> IMuxedConn:
        connection = await super().upgrade_inbound_raw_conn(raw_conn, maddr)
        if isinstance(raw_conn, RawConnection) and isinstance(raw_conn.stream, MeteredSocket):
            self._doorway.handshaking.leave(raw_conn.stream)
        return connection

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        """Notes whether the connection is relayed, which the library does not find out through Noise."""
        connection = await super().add_conn(muxed_conn, direction)
        is_relayed = cast(SteadyYamux, muxed_conn).get_remote_address() is None
        kind = ConnectionType.RELAYED if is_relayed else ConnectionType.DIRECT
        connection.set_transport_info(connection.get_transport_addresses(), kind)
        if not is_relayed:
            self.on_direct(connection)
        return connection

    def live(self, peer: ID) -> list[INetConn]:
        """Returns the connections to a peer that stand, the newest last."""
        return [c for c in self.connections.get(peer, []) if not c.is_closed and not c.muxed_conn.is_closed]

    def connection_to(self, peer: ID) -> INetConn | None:
        """Returns the connection to a peer that is used: a direct one, if there is one, and of these the newest, since
        a peer that connects again may have lost the others. None if none stands."""
        return min(reversed(self.live(peer)), key=is_relayed_connection, default=None)


class NoNames:
    """Looks up nothing: ``swarm.hosts.names`` does, what the owner wrote. The library's own takes 6 MB."""

    async def resolve(self, maddr: Multiaddr, options: object = None) -> list[Multiaddr]:
        return []


library.DNSResolver = NoNames  # type: ignore[attr-defined]  # every network makes one


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
