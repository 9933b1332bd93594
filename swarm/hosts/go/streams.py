"""Streams in and out of one host: the daemon hands over what peers open, and opens what we ask for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container
from contextlib import suppress

import anyio
from anyio.abc import SocketAttribute, SocketStream

from protocol import base58
from protocol.errors import HostEndedError, ProtocolError, StarlingError, UnreachableError
from protocol.identity import PEER_ID_BYTES
from swarm.deadlines import deadline
from swarm.host import PeerId, Stream, StreamHandler
from swarm.hosts.bandwidth import Bandwidth
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import LOCAL_SECONDS, Frames, close, one_line, whole_seconds
from swarm.hosts.go.daemon_addresses import network_of
from swarm.hosts.go.daemon_process import Daemon
from swarm.hosts.go.daemon_view import DaemonView
from swarm.hosts.go.go_stream import GoStream, StreamTraffic
from swarm.socket_peer import is_process

INCOMING_STREAMS_PER_PEER = 128
INCOMING_STREAMS = 1024
STREAM_END_SECONDS = 5.0  # for a peer to end its direction after our handler returned

_Origin = tuple[PeerId, str, str]
"""(peer, its network, protocol)"""


class GoStreams:
    """The streams of one host. ``daemon`` returns the daemon while it runs; ``faults`` counts, by reason, the failures
    of peers that handlers met. An exception of a handler that is no ``StarlingError`` is raised in its task."""

    def __init__(
        self,
        daemon: Callable[[], Daemon],
        view: DaemonView,
        blocked: Container[PeerId],
        bandwidth: Bandwidth,
        faults: Counter[str],
    ) -> None:
        self.traffic = StreamTraffic(bandwidth)
        self._daemon = daemon
        self._view = view
        self._blocked = blocked
        self._faults = faults
        self._handlers: dict[str, StreamHandler] = {}
        self._incoming: Counter[PeerId] = Counter()

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serves ``protocol`` once the daemon knows of it (``register``)."""
        self._handlers[protocol] = handler

    def register_all(self) -> None:
        for protocol in self._handlers:
            self.register(protocol)

    def register(self, protocol: str) -> None:
        """Has the daemon hand over streams of ``protocol``."""
        daemon = self._daemon()
        where = os.fsencode(daemon.stream_socket)
        answer = daemon.control.request_at_once(messages.handle_streams(where, protocol))
        if answer.error is not None:
            raise HostEndedError(f"the daemon p2pd serves no {protocol}: {answer.error}")

    async def on_incoming(self, connection: SocketStream) -> None:
        """Serves one stream that the daemon hands over, and closes it in any case."""
        try:
            await self._serve(connection)
        finally:
            await close(connection)

    async def _serve(self, connection: SocketStream) -> None:
        origin = await self._origin_of(connection)
        if origin is None:
            return
        (peer, network, protocol), left = origin
        handler = self._handlers.get(protocol)
        is_full = self._incoming[peer] >= INCOMING_STREAMS_PER_PEER or self._incoming.total() >= INCOMING_STREAMS
        if handler is None or peer in self._blocked or is_full:
            return
        self._incoming[peer] += 1
        try:
            if peer not in self._view.connected:
                await self._view.look_at_peers()
            await self._serve_stream(
                handler, GoStream(connection, peer, network, self.traffic, left=left, is_ours=False)
            )
        finally:
            self._incoming[peer] -= 1
            if not self._incoming[peer]:
                del self._incoming[peer]

    async def _origin_of(self, connection: SocketStream) -> tuple[_Origin, bytes] | None:
        """Returns (peer, its network, protocol) and what arrived behind; None if it is not from the daemon."""
        if not is_process(connection.extra(SocketAttribute.raw_socket), self._daemon().pid):
            self._faults["stranger on the socket"] += 1
            return None
        frames = Frames(connection)
        with anyio.move_on_after(LOCAL_SECONDS), suppress(HostEndedError):
            message = await frames.next()
            try:
                return _origin(messages.read_stream_origin(message)), frames.rest()
            except ProtocolError as error:
                self._faults[error.reason] += 1
        return None

    async def _serve_stream(self, handler: StreamHandler, stream: GoStream) -> None:
        try:
            await handler(stream)
        except StarlingError as failure:
            self._faults[failure.reason] += 1
            await stream.reset()
        except BaseException:
            await stream.reset()
            raise
        else:
            await stream.finish(linger_seconds=STREAM_END_SECONDS)

    async def open(self, peer: PeerId, protocol: str, deadline_seconds: float) -> Stream:
        """Opens a stream to a peer that the daemon is connected to. Raises as ``swarm.host.Host.open_stream``."""
        request = messages.open_stream(base58.to_bytes(peer), protocol, timeout_seconds=whole_seconds(deadline_seconds))
        with deadline(deadline_seconds, f"opening {protocol} to {peer}"):
            connection, answer, frames = await self._daemon().control.open(request)
        if answer.error is not None or answer.stream is None:
            await close(connection)
            raise UnreachableError(f"{peer} opened no {protocol}: {one_line(answer.error or 'no stream')}")
        return GoStream(
            connection, peer, network_of(answer.stream.address), self.traffic, left=frames.rest(), is_ours=True
        )

    async def reset_all(self) -> None:
        for stream in list(self.traffic.open):
            await stream.reset()


def _origin(origin: messages.StreamOrigin) -> _Origin:
    return base58.to_text(origin.peer[:PEER_ID_BYTES]), network_of(origin.address), origin.protocol
