"""Round trips to connected peers, by libp2p's ping: 32 random bytes, which the peer returns."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio

from protocol.errors import TransportError
from swarm.host import PeerId, Stream

PING_PROTOCOL = "/ipfs/ping/1.0.0"
PING_BYTES = 32
PING_SECONDS = 5.0  # for a peer to answer
PING_EVERY_SECONDS = 15.0  # each peer
LOOK_SECONDS = 0.25  # between looks whether a peer is new

OpenStream = Callable[[PeerId, str, float], Awaitable[Stream]]


class RoundTrips:
    """Measures one peer at a time: those that are new, then those measured longest ago."""

    def __init__(self, peers: Callable[[], Sequence[PeerId]], open_stream: OpenStream) -> None:
        self._peers = peers
        self._open_stream = open_stream
        self._measured: dict[PeerId, float | None] = {}
        self._asked_at_seconds: dict[PeerId, float] = {}

    def of(self, peer: PeerId) -> float | None:
        return self._measured.get(peer)

    async def run(self) -> None:
        while True:
            peers = self._peers()
            for kept in (self._measured, self._asked_at_seconds):
                for gone in kept.keys() - set(peers):
                    del kept[gone]
            now_seconds = anyio.current_time()
            due = [p for p in peers if now_seconds - self._asked_at_seconds.get(p, -1e9) >= PING_EVERY_SECONDS]
            for peer in due:
                self._asked_at_seconds[peer] = anyio.current_time()
                with suppress(TransportError), anyio.move_on_after(PING_SECONDS):
                    self._measured[peer] = await self._measure(peer)
            await anyio.sleep(LOOK_SECONDS)

    async def _measure(self, peer: PeerId) -> float | None:
        stream = await self._open_stream(peer, PING_PROTOCOL, PING_SECONDS)
        try:
            sent = os.urandom(PING_BYTES)
            began_seconds = anyio.current_time()
            await stream.send(sent)
            heard = b""
            while len(heard) < PING_BYTES:
                piece = await stream.receive(PING_BYTES - len(heard))
                if not piece:
                    break
                heard += piece
            return anyio.current_time() - began_seconds if heard == sent else self._measured.get(peer)
        finally:
            await stream.reset()
