"""Frames that arrive on a connection: payload and grants of open streams are taken, all others are the library's."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import cast

import pytest
import trio
from libp2p.abc import ISecureConn
from libp2p.io.exceptions import IncompleteReadError
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_FIN,
    FLAG_SYN,
    HEADER_SIZE,
    TYPE_DATA,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
)

from swarm.hosts.libp2p.yamux_frames import ArrivingFrames

OPEN, CLOSED = 1, 3  # streams


def frame(kind: int, flags: int, stream: int, length: int, payload: bytes = b"") -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream, length) + payload


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(TYPE_DATA, flags, stream, len(payload), payload)


class Pieces:
    """A secured connection that delivers given pieces, and then ends."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = list(pieces)

    async def read(self, n: int | None = None) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


class Arrived:
    """Takes what is of stream ``OPEN``, as the multiplexer does."""

    def __init__(self, pieces: Pieces) -> None:
        self.frames = ArrivingFrames(cast(ISecureConn, pieces), self._payload, self._grant)
        self.payload = b""
        self.granted = 0

    async def _payload(self, stream: int, length: int) -> bool:
        if stream == OPEN:
            self.payload += bytes(self.frames.take(length) or await self.frames.exactly(length))
        return stream == OPEN

    def _grant(self, stream: int, size: int) -> bool:
        self.granted += size * (stream == OPEN)
        return stream == OPEN


def test_frames_of_open_streams_are_taken_and_all_others_left_in_pieces_of_any_size() -> None:
    twelve = bytes(HEADER_SIZE)  # payload as long as a header
    left = [
        data(5, twelve, FLAG_SYN),
        data(CLOSED, twelve),
        frame(TYPE_PING, FLAG_SYN, 0, 7),
        frame(TYPE_WINDOW_UPDATE, 0, CLOSED, 9),
        data(OPEN, b"the end", FLAG_FIN),
        data(OPEN, b""),
    ]
    taken = [data(OPEN, twelve), frame(TYPE_WINDOW_UPDATE, 0, OPEN, 1000), data(OPEN, bytes(range(256)) * 300)]
    everything = b"".join(b"".join(taken) + other for other in left)

    async def story(pieces: Sequence[bytes]) -> None:
        arrived = Arrived(Pieces(pieces))
        for expected in left:
            header = await arrived.frames.read(HEADER_SIZE)
            assert header == expected[:HEADER_SIZE]
            assert await arrived.frames.exactly(len(expected) - HEADER_SIZE) == expected[HEADER_SIZE:]
        assert arrived.payload == (twelve + bytes(range(256)) * 300) * len(left)
        assert arrived.granted == 1000 * len(left)
        with pytest.raises(IncompleteReadError):
            await arrived.frames.read(HEADER_SIZE)

    for largest in (1, 11, 12, 13, 65_519, len(everything)):
        chance, pieces, at = random.Random(largest), [], 0
        while at < len(everything):
            pieces.append(everything[at : at + chance.randint(1, largest)] if largest > 1 else everything[at : at + 7])
            at += len(pieces[-1])
        trio.run(story, pieces)


def test_a_message_that_was_read_is_not_kept_until_the_next() -> None:
    async def story() -> None:
        arrived = Arrived(Pieces([data(OPEN, bytes(60_000)) + frame(TYPE_PING, FLAG_SYN, 0, 7)]))
        await arrived.frames.read(HEADER_SIZE)
        assert arrived.frames._unread.obj == b""

    trio.run(story)


def test_while_the_next_message_is_awaited_nothing_of_the_last_is_kept() -> None:
    gone: list[int] = []
    gone_at_each_read: list[int] = []

    class Message(bytes):
        def __del__(self) -> None:
            gone.append(len(self))

    class Watched(Pieces):
        async def read(self, n: int | None = None) -> bytes:
            gone_at_each_read.append(len(gone))
            return await super().read(n)

    async def story() -> None:
        frames = frame(TYPE_WINDOW_UPDATE, 0, OPEN, 1000) + data(OPEN, bytes(60_000))
        arrived = Arrived(Watched([Message(frames)]))
        with pytest.raises(IncompleteReadError):
            await arrived.frames.read(HEADER_SIZE)
        assert len(arrived.payload) == 60_000

    trio.run(story)
    assert gone_at_each_read == [0, 1]
