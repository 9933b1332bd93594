"""Limits on what all sockets send and receive together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from swarm.blobs.fetch_places import PEERS_AT_MOST, FetchPlace, may_start, peers_within, to_displace
from swarm.hosts.bandwidth import Bandwidth
from swarm.hosts.libp2p.transport import Meter, MeteredSocket

RATE = 100_000.0


def seconds_of(story: Callable[[], Awaitable[None]]) -> float:
    """Virtual seconds that a story takes."""
    began = 0.0
    ended = 0.0

    async def main() -> None:
        nonlocal began, ended
        began = trio.current_time()
        await story()
        ended = trio.current_time()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return ended - began


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_megabyte_takes_its_time_in_either_direction(direction: str) -> None:
    bandwidth = Bandwidth(RATE, 0.0) if direction == "up" else Bandwidth(0.0, RATE)
    wait = bandwidth.before_sending if direction == "up" else bandwidth.after_receiving

    async def story() -> None:
        for _ in range(100):
            await wait(10_000)

    assert 9.5 <= seconds_of(story) <= 10.0


def test_several_sockets_share_one_limit() -> None:
    bandwidth = Bandwidth(RATE)

    async def send() -> None:
        for _ in range(25):
            await bandwidth.before_sending(10_000)

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(send)

    assert 9.5 <= seconds_of(story) <= 10.0


def test_without_a_limit_and_in_the_other_direction_nothing_waits() -> None:
    bandwidth = Bandwidth(0.0, RATE)

    async def story() -> None:
        for _ in range(100):
            await bandwidth.before_sending(1_000_000)

    assert seconds_of(story) == 0.0


def test_a_socket_holds_back_what_it_sends_and_what_it_received() -> None:
    bandwidth = Bandwidth(RATE, RATE)
    waited: list[float] = []

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        there = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        here = MeteredSocket(await listener.accept(), Meter(bandwidth=bandwidth))
        await listener.aclose()
        began = trio.current_time()
        await here.write(bytes(50_000))
        await here.write(bytes(50_000))
        waited.append(trio.current_time() - began)
        await there.send_all(bytes(60_000))
        began, received = trio.current_time(), 0
        while received < 60_000:
            received += len(await here.read(60_000))
        waited.append(trio.current_time() - began)
        await here.close()
        await there.aclose()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.02))
    burst = 25_000
    assert (100_000 - burst) / RATE <= waited[0] <= 100_000 / RATE + 0.1
    assert (60_000 - burst) / RATE <= waited[1] <= 60_000 / RATE + 0.5


def test_under_a_limit_no_more_peers_are_asked_at_once_than_can_each_send_usefully() -> None:
    assert peers_within(0.0) == PEERS_AT_MOST == peers_within(1e9)
    assert (peers_within(1000.0), peers_within(65_536.0)) == (1, 4)
    asked = {f"peer{number}": FetchPlace(asked_at_seconds=0.0, received_bytes=100) for number in range(4)}
    assert not may_start(asked, 20.0, 4) and may_start(asked, 20.0)
    assert to_displace(asked, 20.0, 4) is not None and to_displace(asked, 20.0) is None
