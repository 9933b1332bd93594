"""Streams in and out of one host: who serves them, how many a peer may open, and how each ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID

from protocol.errors import StarlingError, UnreachableError
from swarm.deadlines import deadline
from swarm.host import Handshake, PeerId, Stream, StreamHandler
from swarm.hosts.libp2p.connecting.dial_failures import reason_of
from swarm.hosts.libp2p.connecting.network import DoorwayNetwork
from swarm.hosts.libp2p.containment import PEER_FAILURES, Failures
from swarm.hosts.libp2p.libp2p_stream import Libp2pStream

INCOMING_STREAMS_PER_PEER = 128
STREAM_END_SECONDS = 5.0  # for a peer to end its direction after our handler returned


class Libp2pStreams:
    """The streams of one host. ``failures`` counts those of the library, ``faults`` those of peers that handlers met;
    ``on_bug`` is called with every other exception of a handler. ``handshake`` is that of a private cluster."""

    def __init__(
        self,
        network: DoorwayNetwork,
        host: BasicHost,
        handshake: Handshake | None,
        *,
        failures: Failures,
        faults: Counter[str],
        on_bug: Callable[[Exception], None],
    ) -> None:
        self._network = network
        self._host = host
        self._handshake = handshake
        self._failures = failures
        self._faults = faults
        self._on_bug = on_bug
        self._incoming: Counter[ID] = Counter()
        network.set_stream_handler(self._on_stream)

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        async def on_stream(stream: INetStream) -> None:
            await self._serve(handler, Libp2pStream(cast(NetStream, stream), str(stream.muxed_conn.peer_id)))

        self._host.set_stream_handler(TProtocol(protocol), on_stream)

    async def _on_stream(self, stream: INetStream) -> None:
        """Bounds incoming streams and contains failures, between the library's multiplexer and its negotiation."""
        peer = stream.muxed_conn.peer_id
        if self._is_refused(str(peer)) or self._incoming[peer] >= INCOMING_STREAMS_PER_PEER:
            await stream.reset()
            return
        self._incoming[peer] += 1
        try:
            await self._host._swarm_stream_handler(stream)
        except Exception as error:  # noqa: BLE001  the library, serving a stranger
            self._failures.note("incoming stream", error)
            await stream.reset()
        finally:
            self._incoming[peer] -= 1
            if not self._incoming[peer]:
                del self._incoming[peer]

    async def _serve(self, handler: StreamHandler, stream: Libp2pStream) -> None:
        try:
            await handler(stream)
        except StarlingError as failure:
            self._faults[failure.reason] += 1
            await stream.reset()
        except Exception as bug:  # noqa: BLE001  raised again out of run(), away from the library's tasks
            await stream.reset()
            self._on_bug(bug)
        else:
            await stream.finish(linger_seconds=STREAM_END_SECONDS)

    async def open(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        """As ``swarm.host.Host.open_stream``."""
        if self._network.connection_to(ID.from_string(peer)) is None:
            raise UnreachableError(f"not connected to {peer}")
        if self._is_refused(peer):
            raise UnreachableError(f"{peer} is no longer a member of this cluster")
        with deadline(deadline_seconds, f"opening {protocol} to {peer}"):
            try:
                stream = await self._host.new_stream(ID.from_string(peer), [TProtocol(protocol)])
            except PEER_FAILURES as error:
                raise UnreachableError(f"{peer} opened no {protocol}: {reason_of(error)}") from error
        return Libp2pStream(cast(NetStream, stream), peer)

    def _is_refused(self, peer: PeerId) -> bool:
        return self._handshake is not None and self._handshake.refusal(peer) is not None
