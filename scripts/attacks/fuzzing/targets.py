"""What inputs are given to: everything that reads a stranger's bytes.

A target has sound examples, which are mutated, and may have a maker of valid inputs with extreme fields. ``prepare``
returns the action that is measured; what it does to bring a valid input there (signing, for example) is not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import anyio
import trio
from trio.testing import MockClock

from protocol.errors import StarlingError
from scripts.attacks.fuzzing.measuring import Prepare

Make = Callable[[Random], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """``share`` and ``structured_share`` say how many of the mutated and of the structured inputs it gets, relative to
    those of the others; less than one for those that take long to make."""

    name: str
    prepare: Prepare
    examples: Sequence[bytes] = ()
    share: float = 0
    make: Make | None = None
    structured_share: float = 0


def direct(decode: Callable[[bytes], object]) -> Prepare:
    """Measures ``decode`` alone."""
    return lambda raw: lambda: decode(raw)


def all_of(*steps: Callable[[], object]) -> None:
    """Runs every step. Raises the last refusal if all of them refused, and any other exception at once."""
    refusals = []
    for step in steps:
        try:
            step()
        except StarlingError as refusal:
            refusals.append(refusal)
    if len(refusals) == len(steps):
        raise refusals[-1]


def driven(work: Coroutine[Any, Any, Any]) -> None:
    """Runs what is asynchronous and waits for nothing. Raises what it raises."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise RuntimeError("it waits for something")


def length_prefixed(raw: bytes) -> bytes:
    """Returns the bytes behind a varint of their length, as libp2p frames messages."""
    length, prefix = len(raw), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + raw


def blocks_in(share: float, turn: int) -> int:
    """Returns how many blocks of inputs a target with this share gets in a turn, counted from 1."""
    return int(share * turn + 1e-9) - int(share * (turn - 1) + 1e-9)


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
