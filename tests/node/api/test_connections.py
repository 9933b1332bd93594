"""Connections to the API over TCP: crowds of silent ones and other users of the machine do not lock the owner out."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from aiohttp import ClientSession

from node.api import connections as connections_module
from node.api import server
from node.api.connections import MAX_CONNECTIONS, OTHERS_CONNECTIONS, Address, Connections, user_of
from node.api.event_feed import OTHERS_READERS, EventFeed
from node.api.server import served
from tests.hang_guard import HANG_SECONDS
from tests.node.api.test_api import TOKEN, Node

OTHER_USER = os.getuid() + 1
SAMPLES = b"GET /api/v1/samples HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
ASK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
EVENTS = b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Machine:
    """A served node, and clients of two users; the test says which of them opens a connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._others: set[int] = set()  # ports of the other user's sockets
        self._writers: list[asyncio.StreamWriter] = []

    def user(self, theirs: Address, ours: Address) -> int:
        return OTHER_USER if theirs[1] in self._others else os.getuid()

    async def connect(self, *, other: bool = False) -> Peer:
        with socket.socket() as bound:  # a port that the server knows as the other user's before it hears of it
            bound.bind(("127.0.0.1", 0))
            if other:
                self._others.add(bound.getsockname()[1])
            bound.setblocking(False)
            await asyncio.get_running_loop().sock_connect(bound, ("127.0.0.1", self.port))
            peer = await asyncio.open_connection(sock=bound.dup())
        self._writers.append(peer[1])
        return peer

    async def crowd(self, count: int, *, says: bytes = b"", other: bool = False) -> list[Peer]:
        peers = [await self.connect(other=other) for _ in range(count)]
        for _, writer in peers:
            writer.write(says)
        return peers

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


async def first_line(peer: Peer) -> bytes:
    """Returns the first line of the answer; b"" if the connection was closed."""
    try:
        return await asyncio.wait_for(peer[0].readline(), HANG_SECONDS)
    except ConnectionError:
        return b""


@asynccontextmanager
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    found = Machine(0)
    monkeypatch.setattr(server, "Connections", partial(Connections, found.user))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with served(Node(), EventFeed(), tmp_path / "s", ports=(port,), token=TOKEN):
        found.port = port
        try:
            yield found
        finally:
            found.close()


async def test_owner_is_answered_beside_more_silent_connections_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine(tmp_path, monkeypatch) as node:
        await node.crowd(2 * MAX_CONNECTIONS)
        (owner,) = await node.crowd(1, says=ASK)
        assert b"200" in await first_line(owner)


async def test_other_users_hold_half_of_the_connections_and_of_the_readers_and_the_owner_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine(tmp_path, monkeypatch) as node:
        readers = await node.crowd(OTHERS_READERS + 1, says=EVENTS, other=True)
        answers = [await first_line(reader) for reader in readers]
        assert [b"200" in answer for answer in answers] == [True] * OTHERS_READERS + [False]
        (page,) = await node.crowd(1, says=EVENTS)
        assert b"200" in await first_line(page)
        idle = await node.crowd(2 * OTHERS_CONNECTIONS, says=ASK, other=True)  # each makes room for the next
        assert b"200" in await first_line(idle[-1])
        (owner,) = await node.crowd(1, says=ASK)
        assert b"200" in await first_line(owner)
        assert not page[0].at_eof()


async def test_connection_that_never_asks_is_closed_and_one_that_asked_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "FIRST_REQUEST_SECONDS", 0.2)
    async with machine(tmp_path, monkeypatch) as node:
        silent, half, asking = await node.connect(), await node.connect(), await node.connect()
        half[1].write(ASK[:-2])
        asking[1].write(ASK)
        assert b"200" in await first_line(asking)
        assert await first_line(silent) == b""
        assert await first_line(half) == b""
        asking[1].write(ASK)
        await asking[0].readuntil(b"HTTP/1.1 200")


@pytest.mark.parametrize("iterations", range(6))
@pytest.mark.parametrize("over", ["unix", "tcp"])
async def test_connection_that_comes_while_the_server_ends_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: str, iterations: int
) -> None:
    async with machine(tmp_path, monkeypatch) as node:
        client = socket.socket(socket.AF_UNIX if over == "unix" else socket.AF_INET)
        client.connect(str(tmp_path / "s") if over == "unix" else ("127.0.0.1", node.port))  # the backlog takes it
        client.setblocking(False)
        for _ in range(iterations):  # of the loop: asyncio accepts, makes the transport, tells the protocol
            await asyncio.sleep(0)
    with client, suppress(ConnectionError):
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), HANG_SECONDS) == b""


async def test_authorization_that_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with machine(tmp_path, monkeypatch) as node:
        says = b"POST /api/v1/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xff\xfe\r\n\r\n"
        (peer,) = await node.crowd(1, says=says)
        assert b"401" in await first_line(peer)


async def test_page_still_works_where_the_system_does_not_say_who_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "Connections", partial(Connections, lambda theirs, ours: None))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with (
        served(Node(), EventFeed(), tmp_path / "s", ports=(port,), token=TOKEN),
        ClientSession() as client,
        client.get(f"http://127.0.0.1:{port}/health") as answer,
    ):
        assert answer.status == 200


CONNECT = """
import encodings.idna, os, socket, sys
os.setuid({user})
connected = socket.create_connection(("127.0.0.1", {port}))
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sock_diag is Linux's")
def test_user_of_a_connection_is_who_opened_it() -> None:
    users = [os.getuid()] if os.getuid() else [0, 65534]  # only root can become somebody else
    assert [_user_found_of(user) for user in users] == users


def _user_found_of(user: int) -> int | None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(HANG_SECONDS)
        code = CONNECT.format(user=user, port=listening.getsockname()[1])
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        try:
            accepted, address = listening.accept()
            with accepted:
                return user_of(address, accepted.getsockname())
        finally:
            child.communicate()


async def test_questions_and_answers_are_for_the_nodes_own_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine(tmp_path, monkeypatch) as node:
        (other,) = await node.crowd(1, says=SAMPLES, other=True)
        (owner,) = await node.crowd(1, says=SAMPLES)
        assert b"403" in await first_line(other) and b"200" in await first_line(owner)
