"""Streams that give what a fuzzer drew, and take whatever is written; and running what uses them in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import trio
from trio.testing import MockClock


class DrawnStream:
    """One of a peer (``swarm.host.Stream``) or of a connection, which ends after these bytes."""

    def __init__(self, content: bytes, *, peer: str = "", network: str = "198.18.0.1") -> None:
        self.peer, self.network = peer, network
        self._left = content

    async def receive(self, max_bytes: int = 65536) -> bytes:
        piece, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return piece

    async def send(self, payload: bytes) -> None:
        return

    async def close(self) -> None:
        return

    async def reset(self) -> None:
        return

    async def finish(self, *, linger_seconds: float) -> None:
        return


class DrawnConnection(DrawnStream):
    """As anyio's streams of bytes, whose end is an exception."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        piece = await super().receive(max_bytes)
        if not piece:
            raise anyio.EndOfStream
        return piece


def in_virtual_time(work: Callable[[], Awaitable[object]]) -> None:
    """Runs what waits, without waiting. Raises what it raises."""

    async def alone() -> None:
        await work()

    trio.run(alone, clock=MockClock(autojump_threshold=0))
