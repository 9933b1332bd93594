"""``swarm.host.Stream`` over a py-libp2p stream.

It does what the library leaves to its caller: it waits for the peer's window without the library's limit of five
seconds, tells a reset or a lost connection from the end of the stream (the library reports all three as the end), and
releases the stream's slot once both directions have ended.
"""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import anyio
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.network.stream.net_stream import NetStream
from libp2p.stream_muxer.yamux.yamux import YamuxStream

from protocol.errors import UnreachableError
from swarm.address_groups import groups_of
from swarm.host import PeerId
from swarm.hosts.libp2p.containment import PEER_FAILURES
from swarm.hosts.libp2p.yamux import SteadyStream, frame_bytes

DISCARDED_BYTES = 1 << 16  # at a time
LOOK_SECONDS = 0.02  # between two looks whether a stream that waits for its peer's window is dead


class Libp2pStream:
    """One stream to one peer. Made by ``Libp2pHost``."""

    def __init__(self, stream: NetStream, peer: PeerId) -> None:
        self.peer = peer
        self._stream = stream
        self._yamux = cast(SteadyStream, stream.muxed_stream)
        self.network = _network_of(self._yamux)
        self._sent_all = False
        self._received_all = False

    async def send(self, payload: bytes) -> None:
        if self._sent_all:
            raise RuntimeError("send after close: this end of the stream is closed")
        left = memoryview(payload)
        while left:
            frame = left[: frame_bytes(len(left), await self._window())]
            try:
                await self._yamux.send_frame(frame)
            except PEER_FAILURES as error:
                raise self._gone() from error
            left = left[len(frame) :]

    async def _window(self) -> int:
        """Returns how many bytes the peer accepts now; waits until it is at least one, or the stream is dead."""
        while self._yamux.send_window <= 0:
            if self._yamux.closed or self._yamux.reset_received or self._is_connection_down():
                raise self._gone()
            with anyio.move_on_after(LOOK_SECONDS):
                await self._yamux.wait_for_window()
        return self._yamux.send_window

    async def receive(self, max_bytes: int) -> bytes:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; at least 1 is needed to tell data from the end of the stream")
        if self._received_all:
            return b""
        try:
            return await self._yamux.receive(max_bytes) or await self._stream.read(max_bytes)
        except StreamEOF as error:
            if self._yamux.reset_received or not self._yamux.recv_closed or self._is_connection_down():
                raise self._gone() from error
        except PEER_FAILURES as error:
            raise self._gone() from error
        self._received_all = True
        await self._release_if_done()
        return b""

    async def close(self) -> None:
        if self._sent_all:
            return
        self._sent_all = True
        try:
            await self._stream.close_write()
        except PEER_FAILURES as error:
            raise self._gone() from error
        await self._release_if_done()

    async def reset(self) -> None:
        self._sent_all = True
        with anyio.CancelScope(shield=True):
            await self._stream.reset()

    async def finish(self, *, linger_seconds: float) -> None:
        with suppress(UnreachableError):
            await self.close()
            with anyio.move_on_after(linger_seconds):
                while await self.receive(DISCARDED_BYTES):
                    pass
        if not self._received_all:
            await self.reset()

    async def _release_if_done(self) -> None:
        """Closes the stream, which the library would otherwise keep. Both directions ended, so nothing is lost."""
        if self._sent_all and self._received_all:
            with anyio.CancelScope(shield=True):
                await self._stream.close()

    def _is_connection_down(self) -> bool:
        return self._yamux.conn.event_shutting_down.is_set()

    def _gone(self) -> UnreachableError:
        what = "the connection is closed" if self._is_connection_down() else "the stream was reset"
        return UnreachableError(f"{self.peer} is gone: {what}")


def _network_of(stream: YamuxStream) -> str:
    remote = stream.get_remote_address()
    return groups_of(remote[0])[1].partition("/")[0] if remote is not None else ""
