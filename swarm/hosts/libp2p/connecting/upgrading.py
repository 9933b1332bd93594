"""From a socket to a connection of the library: Noise, then Yamux, with what the library's own upgrade lacks.

- Only Noise and Yamux are offered; the library's default would also accept plaintext.
- With a handshake (``swarm.cluster.handshake``), everything runs inside ``libp2p_private``, and the handshake runs
  after Noise and before Yamux: a peer that is not admitted never becomes a connection, so that no service of the
  library hears of it. Refusals are counted as "private network" and "handshake".
- Blocked peers are refused during the upgrade, so that their dial fails instead of succeeding for a moment. So is a
  connection beyond ``CONNECTIONS_PER_PEER``, which the library takes and closes after some twenty seconds.
"""

from __future__ import annotations

from collections.abc import Container
from typing import cast

from cryptography.exceptions import InvalidTag
from libp2p.abc import IMuxedConn, IRawConnection, ISecureConn
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectClientError, MultiselectError
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from libp2p.transport.exceptions import MuxerUpgradeFailure, SecurityUpgradeFailure
from libp2p.transport.upgrader import TransportUpgrader

from protocol.errors import StarlingError, UnreachableError
from swarm.cluster.handshake import perform_handshake
from swarm.host import Handshake
from swarm.hosts.libp2p.containment import PEER_FAILURES, Failures, innermost_cause
from swarm.hosts.libp2p.noise_messages import gather_noise
from swarm.hosts.libp2p.private_network import PrivateConnection, PrivateNetworkError
from swarm.hosts.libp2p.transport import CONNECTIONS_PER_PEER, Meter, MeteredSocket
from swarm.hosts.libp2p.yamux import SteadyYamux

NO_NODE = "plain text answers there, as from a web server, and no starling node: check the port"
NOISE_PAYLOAD_BYTES = 1 << 15  # of one message of Noise, which holds 65,519 at most


class OtherProtocolError(RawConnError):
    """The other end speaks no libp2p."""


class Upgrader(TransportUpgrader):
    """Makes a connection of a socket: Noise, then Yamux. In a private cluster both run under its pre-shared key, and
    its handshake runs between them.

    Peers in ``blocked``, and connections of a peer beyond ``CONNECTIONS_PER_PEER``, end here, before a service hears of
    them. ``failures`` counts what fails, by place. The methods raise ``SecurityUpgradeFailure``, whose cause is the
    cluster's refusal where it refuses, and ``MuxerUpgradeFailure``, as the library expects.
    """

    def __init__(
        self,
        key_pair: KeyPair,
        blocked: Container[ID],
        handshake: Handshake | None,
        meter: Meter,
        failures: Failures,
    ) -> None:
        noise = NoiseTransport(key_pair, noise_privkey=create_noise_key_pair().private_key)
        super().__init__({NOISE_PROTOCOL: noise}, {TProtocol(YAMUX_PROTOCOL): SteadyYamux})
        self._blocked = blocked
        self._handshake = handshake
        self._meter = meter
        self._failures = failures

    async def upgrade_security(
        self, raw_conn: IRawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> ISecureConn:
        socket = raw_conn.stream if isinstance(raw_conn, RawConnection) else None
        if self._handshake is not None:
            raw_conn = PrivateConnection(raw_conn, self._handshake.keys())
        try:
            if is_initiator and peer_id is None:
                connection = await self._secure_with_any(raw_conn)
            else:
                connection = await super().upgrade_security(raw_conn, is_initiator, peer_id)
        except SecurityUpgradeFailure as failure:
            if isinstance(innermost_cause(failure), PrivateNetworkError):
                self._failures.note("private network", failure)
            elif isinstance(socket, MeteredSocket) and socket.has_answered_in_text:
                raise SecurityUpgradeFailure("no libp2p") from OtherProtocolError(NO_NODE)
            raise
        except InvalidTag:  # of Noise, which the library does not expect
            raise SecurityUpgradeFailure("the other end's part of the handshake is wrong") from None
        except ValueError as error:  # the library decodes a greeting as text without a check
            raise SecurityUpgradeFailure("the first bytes are no greeting of libp2p") from error
        gather_noise(cast(SecureSession, connection), socket if isinstance(socket, MeteredSocket) else None)
        peer = connection.get_remote_peer()
        if peer in self._blocked:
            await connection.close()
            raise SecurityUpgradeFailure(f"{peer} is blocked here")
        if isinstance(socket, MeteredSocket):
            if not is_initiator and self._meter.connections_of(peer) >= CONNECTIONS_PER_PEER:
                self._failures.note("surplus connection", ConnectionAbortedError(f"{peer} has {CONNECTIONS_PER_PEER}"))
                await connection.close()
                raise SecurityUpgradeFailure(f"{peer} has {CONNECTIONS_PER_PEER} connections already")
            socket.peer = peer
        if self._handshake is not None:
            await self._perform_handshake(self._handshake, connection, is_initiator)
        return connection

    async def _secure_with_any(self, raw_conn: IRawConnection) -> ISecureConn:
        """As the library's own for an expected peer: here Noise proves whichever peer answers."""
        try:
            return await self.security_multistream.secure_outbound(raw_conn, cast(ID, None))
        except (MultiselectError, MultiselectClientError, HandshakeFailure) as error:
            raise SecurityUpgradeFailure("no secure connection") from error

    async def _perform_handshake(self, handshake: Handshake, connection: ISecureConn, is_initiator: bool) -> None:
        async def send(frame: bytes) -> None:
            for start in range(0, len(frame), NOISE_PAYLOAD_BYTES):
                await connection.write(frame[start : start + NOISE_PAYLOAD_BYTES])

        async def receive(size: int) -> bytes:
            received = await connection.read(size)
            if len(received) < size:
                raise UnreachableError("the other end closed the connection in the handshake")
            return received

        try:
            await perform_handshake(handshake, str(connection.get_remote_peer()), send, receive, dialled=is_initiator)
        except (StarlingError, *PEER_FAILURES) as error:
            self._failures.note("handshake", error)
            await connection.close()
            raise SecurityUpgradeFailure("not admitted") from error

    async def upgrade_connection(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        try:
            await self.muxer_multistream.select_transport(conn)
        except (MultiselectError, MultiselectClientError) as error:
            raise MuxerUpgradeFailure("no common stream multiplexer") from error
        return SteadyYamux(conn, peer_id, is_initiator=conn.is_initiator)
