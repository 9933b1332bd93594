"""A reader of a long message is woken for a large part of it and for the end; a reader of few bytes at once."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from swarm.hosts.libp2p.transport import WAKE_BYTES, Meter, MeteredSocket


async def connected() -> tuple[MeteredSocket, trio.SocketStream]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    there = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    here = await listener.accept()
    await listener.aclose()
    return MeteredSocket(here, Meter()), there


def run(story: Callable[[MeteredSocket, trio.SocketStream, list[bytes]], Awaitable[None]]) -> list[bytes]:
    received: list[bytes] = []

    async def main() -> None:
        with trio.fail_after(60):
            here, there = await connected()
            await story(here, there, received)
            await here.close()
            await there.aclose()

    trio.run(main)
    return received


async def read(here: MeteredSocket, size: int, received: list[bytes]) -> None:
    """Reads what has come of ``size`` bytes that are missing."""
    here.wake_for(size)
    received.append(await here.read(size))


def test_the_rest_of_a_message_wakes_its_reader_once_a_good_part_is_there() -> None:
    async def story(here: MeteredSocket, there: trio.SocketStream, received: list[bytes]) -> None:
        await there.send_all(bytes(500))  # are here before the reader comes, and do not keep it busy either
        async with trio.open_nursery() as tasks:
            tasks.start_soon(read, here, 2 * WAKE_BYTES, received)
            await trio.testing.wait_all_tasks_blocked()
            await there.send_all(bytes(500))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert received == []
            await there.send_all(bytes(WAKE_BYTES))
        await there.send_all(b"xy")
        while received[-1] != b"xy":  # the bytes on their way, then the two
            await read(here, 2 if sum(map(len, received)) == 1000 + WAKE_BYTES else 2047, received)

    assert b"".join(run(story)) == bytes(1000 + WAKE_BYTES) + b"xy"


def test_a_reader_of_a_message_that_ends_early_is_woken_by_the_end() -> None:
    async def story(here: MeteredSocket, there: trio.SocketStream, received: list[bytes]) -> None:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(read, here, 60_000, received)
            await trio.testing.wait_all_tasks_blocked()
            await there.send_all(b"x")
            await there.send_eof()
        await read(here, 60_000, received)

    assert run(story) == [b"x", b""]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_a_machine_that_is_gone_is_noticed_by_what_it_does_not_acknowledge() -> None:
    async def story() -> int | bytes:
        here, there = await connected()
        async with there:
            waits = here.stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            await here.close()
        return waits

    assert trio.run(story) == 30_000
