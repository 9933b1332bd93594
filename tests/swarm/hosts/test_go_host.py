"""The Go host: together with the other kind, without its daemon, and with one that dies, lies or is another's."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

from protocol.errors import ConfigurationError, HostEndedError, TransportError, UnreachableError
from protocol.identity import NodeKey
from swarm.exit_codes import FINAL, exit_code_of
from swarm.host import GossipVerdict, Stream
from swarm.hosts import choosing
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import ControlSocket
from swarm.hosts.go.daemon_gossip import REJECTIONS, DaemonGossip
from swarm.hosts.go.go_host import GoHost
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.settings import ServiceSettings
from tests.hang_guard import HANG_SECONDS
from tests.swarm.conftest import ECHO, GoWorld, echo

LISTEN = "/ip4/127.0.0.1/tcp/0"
BLOB_BYTES = 3_000_000
KEY = bytes(range(32))  # of a provider record

# A daemon that starts well and then answers the question who is connected with a wire type that does not exist.
LYING_DAEMON = """#!{python}
import socket, sys, threading
path = sys.argv[sys.argv.index("-listen") + 1].removeprefix("/unix")
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()

def serve(connection):
    while (request := connection.recv(4096)):
        kind = request[2]
        connection.send(bytes.fromhex({{0: "080800220400020024", 9: "020800"}}.get(kind, "020f0f")))
        if kind == 0:
            connection.send(b"")

while True:
    threading.Thread(target=serve, args=[server.accept()[0]]).start()
"""


def in_trio(story, *arguments) -> None:
    async def main() -> None:
        with trio.fail_after(HANG_SECONDS):
            await story(*arguments)

    trio.run(main)


# Together with py-libp2p


def test_hosts_of_both_kinds_hear_each_other_and_pass_blobs_both_ways() -> None:
    async def story() -> None:
        go, py = GoHost(NodeKey.generate(), [LISTEN]), Libp2pHost(NodeKey.generate(), [LISTEN])
        heard: dict[str, list[bytes]] = {"go": [], "py": []}
        blob = os.urandom(BLOB_BYTES)
        for host in (go, py):
            host.handle("/test/blob/1", lambda stream: _send_blob(stream, blob))
        async with go.run(), py.run():
            for name, host in (("go", go), ("py", py)):
                await host.subscribe("test", lambda _, message: GossipVerdict.ACCEPT, _keep(heard[name]))
            await go.connect(py.addresses()[0], deadline_seconds=10)
            for number in range(20):
                await go.publish("test", b"from go %d" % number)
                await py.publish("test", b"from py %d" % number)
            await GoWorld.eventually(lambda: len(heard["py"]) == len(heard["go"]) == 20)
            assert sorted(heard["py"]) == sorted(b"from go %d" % number for number in range(20))
            assert sorted(heard["go"]) == sorted(b"from py %d" % number for number in range(20))
            for one, other in ((go, py), (py, go)):
                await GoWorld.eventually(partial(_is_connected, one, other.peer_id))
                assert await _fetch_blob(one, other.peer_id) == blob
            for one, other in ((go, py), (py, go)):
                await one.provide(KEY, deadline_seconds=10)
                while not await _found(other, KEY, one.peer_id):  # a DHT has a peer once that is identified
                    await trio.sleep(0.1)
                    await one.provide(KEY, deadline_seconds=10)
            assert go.remote_ip(py.peer_id) == "127.0.0.1"
            await GoWorld.eventually(lambda: go.round_trip_seconds(py.peer_id) is not None)
        assert not go.faults

    in_trio(story)


def test_last_bytes_before_an_end_arrive_and_a_sender_notices_that_its_reader_left() -> None:
    async def story() -> None:
        go, py = GoHost(NodeKey.generate(), [LISTEN]), Libp2pHost(NodeKey.generate(), [LISTEN])
        arrived: list[int] = []
        left: list[str] = []

        async def collect(stream: Stream) -> None:
            content = b""
            with suppress(UnreachableError):  # a reset behind the last byte
                while piece := await stream.receive(1 << 16):
                    content += piece
            arrived.append(len(content))

        async def pour(stream: Stream) -> None:
            await stream.receive(1)
            try:
                while True:
                    await stream.send(bytes(1 << 16))
            except UnreachableError:
                left.append(stream.peer)
                raise

        for host in (go, py):
            host.handle("/test/collect/1", collect)
            host.handle("/test/pour/1", pour)
        async with go.run(), py.run():
            await go.connect(py.addresses()[0], deadline_seconds=10)
            for one, other in ((go, py), (py, go)):
                for _ in range(25):
                    stream = await one.open_stream(other.peer_id, "/test/collect/1", deadline_seconds=10)
                    await stream.send(bytes(50_000))
                    await stream.finish(linger_seconds=5)
                stream = await one.open_stream(other.peer_id, "/test/pour/1", deadline_seconds=10)
                await stream.send(b"?")
                await stream.receive(1)
                await stream.reset()
            await GoWorld.eventually(lambda: len(arrived) == 50 and len(left) == 2)
        assert set(arrived) == {50_000}
        assert set(left) == {go.peer_id, py.peer_id}

    in_trio(story)


def _is_connected(host, peer: str) -> bool:
    return peer in host.peers()


async def _found(finder, key: bytes, provider: str) -> bool:
    """Whether ``finder`` finds a dialable address of ``provider`` under ``key``."""
    addresses = await finder.find_providers(key, limit=8, deadline_seconds=10)
    return any("/tcp/" in address and address.endswith(f"/p2p/{provider}") for address in addresses)


async def _send_blob(stream: Stream, blob: bytes) -> None:
    while await stream.receive(1):  # until the asking side ends the stream, as ``swarm.blobs.blob_server`` does
        await stream.send(blob)


async def _fetch_blob(host, peer: str) -> bytes:
    stream = await host.open_stream(peer, "/test/blob/1", deadline_seconds=10)
    await stream.send(b"?")
    content = b""
    while len(content) < BLOB_BYTES:
        content += await stream.receive(1 << 16)
    await stream.finish(linger_seconds=5)
    return content


def _keep(into: list[bytes]):
    return lambda _, message: into.append(message)


# A daemon that ends, is absent, or is another's


def test_daemon_killed_in_a_transfer_ends_the_host_and_a_new_process_would_start_it_again() -> None:
    async def story() -> None:
        one, other = GoHost(NodeKey.generate(), [LISTEN]), GoHost(NodeKey.generate(), [LISTEN])
        other.handle(ECHO, echo)
        with pytest.raises(HostEndedError, match="p2pd ended") as ended:
            async with other.run(), one.run():
                await one.connect(other.addresses()[0], deadline_seconds=10)
                stream = await one.open_stream(other.peer_id, ECHO, deadline_seconds=10)
                await stream.send(bytes(100_000))
                assert await stream.receive(1000)
                os.kill(one.daemon_pid(), signal.SIGKILL)
                while True:
                    with suppress(TransportError):
                        await stream.send(bytes(100_000))
                    await anyio.sleep(0.01)
        assert exit_code_of(ended.value) not in FINAL

    in_trio(story)


def test_daemon_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import trio\nfrom protocol.identity import NodeKey\nfrom swarm.hosts.go.go_host import GoHost\n"
        "async def main():\n"
        f"    host = GoHost(NodeKey.generate(), ['{LISTEN}'])\n"
        "    async with host.run():\n"
        "        print(host.daemon_pid(), flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as process:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        handle = os.pidfd_open(daemon)
        process.kill()

    async def until_it_ended() -> None:
        await trio.lowlevel.wait_readable(handle)

    try:
        in_trio(until_it_ended)
    finally:
        os.close(handle)


def test_absent_daemon_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'extra "go".*swarm\.host = "py"'):
        GoHost(NodeKey.generate(), [LISTEN])


def test_private_cluster_is_refused_on_the_go_host() -> None:
    class Anything:
        pass

    settings = ServiceSettings("/nowhere", "cluster", "0" * 32, private=True, host="go")
    with pytest.raises(ConfigurationError, match="no pre-shared key"):
        choosing.host_for(settings, NodeKey.generate(), Anything())  # type: ignore[arg-type]


def test_port_of_another_node_is_refused_although_daemons_could_share_it() -> None:
    async def story() -> None:
        first = GoHost(NodeKey.generate(), [LISTEN])
        async with first.run():
            taken = first.addresses()[0].partition("/p2p/")[0]
            with pytest.raises(TransportError, match=taken):
                async with GoHost(NodeKey.generate(), [taken]).run():
                    raise AssertionError("it listens")

    in_trio(story)


def test_process_that_is_not_the_daemon_is_not_served(tmp_path: Path) -> None:
    async def story() -> None:
        host = GoHost(NodeKey.generate(), [LISTEN], home=tmp_path)
        served: list[Stream] = []

        async def keep(stream: Stream) -> None:
            served.append(stream)

        host.handle(ECHO, keep)
        async with host.run():
            (path,) = (tmp_path / "p2pd").glob("*.s")
            assert (tmp_path / "p2pd").stat().st_mode & 0o777 == 0o700
            stranger = await anyio.connect_unix(path)  # a process of this very user: this one
            async with stranger:
                origin = messages._bytes(1, b"\x00\x24") + messages._bytes(2, b"") + messages._bytes(3, ECHO.encode())
                with suppress(anyio.BrokenResourceError):
                    await stranger.send(messages.framed(origin))
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stranger.receive()
            assert not served
            assert host.faults == {"stranger on the socket": 1}
        assert not (tmp_path / "p2pd").exists()

    in_trio(story)


def test_control_socket_of_another_process_is_not_spoken_to(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "c"))
        listener.listen()
        control = ControlSocket(tmp_path / "c", pid=os.getpid() + 1)
        with pytest.raises(HostEndedError, match="another process"):
            control.request_at_once(messages.identify())


def test_daemon_that_sends_rubbish_ends_the_host(tmp_path: Path) -> None:
    binary = tmp_path / "p2pd"
    binary.write_text(LYING_DAEMON.format(python=sys.executable))
    binary.chmod(0o700)

    async def story() -> None:
        with pytest.raises(HostEndedError, match="no message of its protocol"):
            async with GoHost(NodeKey.generate(), [LISTEN], binary=binary).run():
                await anyio.sleep_forever()

    in_trio(story)


def test_go_process_imports_no_py_libp2p_and_no_torch() -> None:
    program = (
        "import sys, swarm.swarm_process, swarm.hosts.go.go_host\n"
        "print([name for name in ('libp2p', 'torch', 'hivemind', 'google.protobuf') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


# Verdicts above the daemon


def _published(author: bytes, content: bytes) -> bytes:
    return messages._bytes(1, author) + messages._bytes(2, content)


def test_author_of_messages_that_no_honest_node_sends_is_blocked() -> None:
    blocked: list[str] = []
    gossip = DaemonGossip("own", is_known=lambda _: False, is_blocked=blocked.__contains__, block=blocked.append)
    judged: list[tuple[str, bytes]] = []

    def reject(forwarder: str, content: bytes) -> GossipVerdict:
        judged.append((forwarder, content))
        return GossipVerdict.REJECT

    for number in range(2 * REJECTIONS):
        gossip._judge(_published(b"\0\1", b"%d" % number), reject, lambda *_: pytest.fail("delivered"))
    assert len(blocked) == 1
    assert len(judged) == REJECTIONS
    assert {forwarder for forwarder, _ in judged} == {""}


def test_equal_content_of_several_authors_is_delivered_once() -> None:
    gossip = DaemonGossip("own", is_known=lambda _: True, is_blocked=lambda _: False, block=pytest.fail)
    heard: list[bytes] = []
    for author in (b"\0\1", b"\0\2", b"\0\3"):
        gossip._judge(_published(author, b"news"), lambda *_: GossipVerdict.ACCEPT, _keep(heard))
    assert heard == [b"news"]
