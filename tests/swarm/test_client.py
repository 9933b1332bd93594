"""The blocking client: what it says first on each connection."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from protocol.errors import UnreachableError
from swarm import api
from swarm.client import SwarmClient
from tests.hang_guard import HANG_SECONDS

LENGTH = struct.Struct(">I")


class Server:
    """Answers ``Done`` to every request, and closes each connection after ``answers`` of them."""

    def __init__(self, path: Path, answers: int) -> None:
        self.requests: list[list[api.Request]] = []  # by connection
        self._answers = answers
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(HANG_SECONDS)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as incoming:
                of_connection: list[api.Request] = []
                self.requests.append(of_connection)
                for _ in range(self._answers):
                    head = incoming.read(LENGTH.size)
                    if not head:
                        break
                    frame = incoming.read(*LENGTH.unpack(head))
                    of_connection.append(msgspec.msgpack.decode(frame, type=api.Request))
                    reply = msgspec.msgpack.encode(api.Done())
                    connection.sendall(LENGTH.pack(len(reply)) + reply)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    serving = Server(tmp_path / "swarm.sock", answers=2)
    yield serving
    serving.close()


def test_every_connection_begins_by_raising_the_store_also_after_a_restart(server: Server, tmp_path: Path) -> None:
    with SwarmClient(tmp_path / "swarm.sock", timeout_seconds=HANG_SECONDS, store_bytes=1 << 33) as client:
        client.judge("peer", bytes(32), api.Judgement.USED)
        with pytest.raises(UnreachableError):  # the server has closed this connection
            client.judge("peer", bytes(32), api.Judgement.USED)
        client.judge("peer", bytes(32), api.Judgement.USED)
    for of_connection in server.requests:
        assert [type(request) for request in of_connection] == [api.RaiseStore, api.Judge]
        assert of_connection[0] == api.RaiseStore(1 << 33)
    assert len(server.requests) == 2


def test_without_a_wish_for_the_store_nothing_is_said_about_it(server: Server, tmp_path: Path) -> None:
    with SwarmClient(tmp_path / "swarm.sock", timeout_seconds=HANG_SECONDS) as client:
        client.judge("peer", bytes(32), api.Judgement.USED)
    assert [type(request) for request in server.requests[0]] == [api.Judge]
