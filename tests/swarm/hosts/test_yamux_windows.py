"""Windows of Yamux, on real frames: a peer that uses all that it was granted, in frames as long as its window."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import cast

import hypothesis
import trio
import trio.testing
from hypothesis import strategies as st
from libp2p.abc import ISecureConn
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import (
    DEFAULT_WINDOW_SIZE,
    FLAG_SYN,
    HEADER_SIZE,
    TYPE_DATA,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    YamuxStream,
)

from swarm.hosts.libp2p.yamux import WINDOW_BYTES, SteadyYamux

STREAM = 1


class Wire:
    """Our end of a connection in memory, as the multiplexer sees it."""

    is_initiator = False

    def __init__(self, stream: trio.StapledStream) -> None:
        self._stream = stream

    async def read(self, n: int | None) -> bytes:
        return bytes(await self._stream.receive_some(n))

    async def write(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def close(self) -> None:
        await self._stream.aclose()


class FramingPeer:
    """The other end, which writes and reads frames by hand and sends nothing that it was not granted."""

    def __init__(self) -> None:
        ours, self._theirs = trio.testing.memory_stream_pair()
        self.muxer = SteadyYamux(cast(ISecureConn, Wire(ours)), ID(b"peer"), is_initiator=False)
        self.granted_bytes = DEFAULT_WINDOW_SIZE
        self.sent = bytearray()
        self.received = bytearray()

    async def start(self, tasks: trio.Nursery) -> None:
        tasks.start_soon(self.muxer.start)
        tasks.start_soon(self._hear)
        await self._send(TYPE_WINDOW_UPDATE, FLAG_SYN, 0)
        self.stream = cast(YamuxStream, await self.muxer.accept_stream())

    async def _hear(self) -> None:
        unread = b""
        while piece := await self._theirs.receive_some(1 << 16):
            unread += bytes(piece)
            while len(unread) >= HEADER_SIZE:
                _, kind, _, stream, length = struct.unpack(YAMUX_HEADER_FORMAT, unread[:HEADER_SIZE])
                unread = unread[HEADER_SIZE:]
                if kind == TYPE_WINDOW_UPDATE and stream == STREAM:
                    self.granted_bytes += length

    async def _send(self, kind: int, flags: int, length: int, payload: bytes = b"") -> None:
        await self._theirs.send_all(struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, STREAM, length) + payload)

    @property
    def window_bytes(self) -> int:
        return self.granted_bytes - len(self.sent)

    async def send_frame(self, size_bytes: int) -> None:
        """One frame, no longer than the window."""
        start = len(self.sent)
        payload = bytes((start + i) % 251 for i in range(8)) * (size_bytes // 8 + 1)
        self.sent += payload[:size_bytes]
        await self._send(TYPE_DATA, 0, size_bytes, payload[:size_bytes])
        await self.settle()

    async def read(self, max_bytes: int) -> None:
        self.received += await self.stream.read(max_bytes)
        await self.settle()

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert not self.muxer.event_shutting_down.is_set(), "an honest peer was dropped"
        unread = len(self.sent) - len(self.received)
        assert self.window_bytes + unread <= self.stream.target_recv_window <= WINDOW_BYTES


def play(story: Callable[[FramingPeer], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(100):
            async with trio.open_nursery() as tasks:
                peer = FramingPeer()
                await peer.start(tasks)
                await story(peer)
                tasks.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock())


def test_peer_that_fills_its_window_with_one_frame_again_and_again_is_heard() -> None:
    async def story(peer: FramingPeer) -> None:
        for odd_bytes in (1, 6, 65_507, 131_073, 262_143, 1_000_003):  # read at first: a part of a window that is full
            for _ in range(3):
                await peer.send_frame(peer.window_bytes)
                await peer.read(odd_bytes)
                while len(peer.received) < len(peer.sent):
                    await peer.read(99_991)
        assert peer.received == peer.sent
        assert peer.stream.target_recv_window == WINDOW_BYTES  # as large as ever; and one frame fills it
        assert peer.window_bytes >= WINDOW_BYTES // 2

    play(story)


step = st.tuples(
    st.one_of(st.none(), st.integers(1, WINDOW_BYTES)),  # a frame: the whole window or a part of it
    st.lists(st.one_of(st.integers(1, 200_000), st.just(WINDOW_BYTES)), max_size=6),  # reads
    st.sampled_from([0.0, 0.001, 1.0]),  # seconds until the next
)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.lists(step, min_size=1, max_size=12))
def test_what_a_peer_may_send_and_what_is_unread_are_never_more_than_the_window(
    steps: list[tuple[int | None, list[int], float]],
) -> None:
    async def story(peer: FramingPeer) -> None:
        for frame_bytes, reads, seconds in steps:
            if size_bytes := min(frame_bytes or peer.window_bytes, peer.window_bytes):
                await peer.send_frame(size_bytes)
            for max_bytes in reads:
                if len(peer.received) < len(peer.sent):
                    await peer.read(max_bytes)
            cast(trio.testing.MockClock, trio.lowlevel.current_clock()).jump(seconds)
        while len(peer.received) < len(peer.sent):
            await peer.read(WINDOW_BYTES)
        assert peer.received == peer.sent
        assert peer.window_bytes >= peer.stream.target_recv_window // 2  # nobody waits for a grant that never comes

    play(story)
