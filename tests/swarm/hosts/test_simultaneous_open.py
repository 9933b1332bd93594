"""Two hosts whose dials become one connection, of which both ends have dialled (TCP's simultaneous open)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from swarm.hosts.libp2p import transport
from swarm.hosts.libp2p.connecting import listening


class Crossing:
    """The next two dials from listening ports meet midway: each gets one end of the same connection."""

    def __init__(self) -> None:
        self.dials = 0
        self._both = trio.Event()
        self._ends: list[trio.SocketStream] = []

    async def open(self, source: tuple[str, int], ip: str, port: int) -> trio.SocketStream:
        self.dials += 1
        if self.dials == 2:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            dialled = await trio.open_tcp_stream(*listener.socket.getsockname()[:2])
            self._ends = [dialled, await listener.accept()]
            await listener.aclose()
            self._both.set()
        await self._both.wait()
        return self._ends.pop()


@pytest.fixture
def crossing(monkeypatch: pytest.MonkeyPatch) -> Crossing:
    crossing = Crossing()
    monkeypatch.setattr(listening, "is_public", lambda ip: True)
    monkeypatch.setattr(transport, "_open_from_if_free", crossing.open)
    return crossing


def test_two_hosts_that_dial_each_other_at_the_same_moment_are_connected(tell_on_sockets, crossing: Crossing) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.start(tasks, 2)
        async with trio.open_nursery() as dials:
            dials.start_soon(lambda: one.connect(other.addresses()[0], deadline_seconds=5))
            dials.start_soon(lambda: other.connect(one.addresses()[0], deadline_seconds=5))
        assert crossing.dials == 2
        assert await world.exchange(one, other.peer_id, b"there") == b"there"
        assert await world.exchange(other, one.peer_id, b"and back") == b"and back"

    tell_on_sockets(story)
