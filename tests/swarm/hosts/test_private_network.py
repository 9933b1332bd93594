"""A pre-shared key keeps strangers out, at once and on both sides, and changes nothing for its holders."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from protocol.errors import RefusedError, UnreachableError
from protocol.identity import NodeKey
from swarm.host import HandshakeReply
from swarm.hosts.libp2p.connecting.network import HANDSHAKE_SECONDS
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.libp2p.private_network import GREETING, PrivateConnection, PrivateNetworkError

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
OURS, THEIRS = bytes(range(32)), bytes(range(1, 33))


class Everybody:
    """A handshake that admits every peer that holds one of the keys."""

    def __init__(self, *psks: bytes) -> None:
        self.psks = psks

    def keys(self) -> tuple[bytes, ...]:
        return self.psks

    def greet(self, peer: str) -> bytes:
        return b"greeting"

    def answer(self, peer: str, greeting: bytes) -> HandshakeReply:
        return HandshakeReply(b"answer")

    def conclude(self, peer: str, answer: bytes) -> HandshakeReply:
        return HandshakeReply(b"conclusion")

    def confirm(self, peer: str, conclusion: bytes) -> None:
        assert conclusion == b"conclusion"

    def refusal(self, peer: str) -> None:
        return None


def host(*psks: bytes | None) -> Libp2pHost:
    held = [psk for psk in psks if psk is not None]
    return Libp2pHost(NodeKey.generate(), [ANY_PORT], handshake=Everybody(*held) if held else None)


def port_of(listening: Libp2pHost) -> int:
    return int(listening.addresses()[0].split("/")[4])


class Wire:
    """One direction of a connection: returns the given pieces, then an end of stream; keeps what is sent."""

    is_initiator = True

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.sent: list[bytes] = []
        self.closed = False

    async def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def read(self, n: int | None = None) -> bytes:
        if not self.pieces:
            return b""
        piece = self.pieces.pop(0)
        if n is not None and len(piece) > n:
            self.pieces.insert(0, piece[n:])
        return piece[:n]

    async def close(self) -> None:
        self.closed = True


def encrypted(psk: bytes, *messages: bytes) -> bytes:
    async def write() -> bytes:
        wire = Wire()
        connection = PrivateConnection(wire, [psk])  # type: ignore[arg-type]
        for message in messages:
            await connection.write(message)
        return b"".join(wire.sent)

    return trio.run(write)


def test_hosts_with_the_same_key_connect_and_talk_and_no_greeting_crosses_in_clear(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        world.make = lambda: host(OURS)
        one, other = await world.start(tasks, 2)
        tapped: list[bytearray] = []

        async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            tapped.append(passed := bytearray())
            async for piece in source:
                passed.extend(piece)
                await sink.send_all(piece)

        async def relay(dialler: trio.SocketStream) -> None:
            async with await trio.open_tcp_stream("127.0.0.1", port_of(other)) as dialled, trio.open_nursery() as pumps:
                pumps.start_soon(pump, dialler, dialled)
                pumps.start_soon(pump, dialled, dialler)

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        tasks.start_soon(trio.serve_listeners, relay, [listener])
        tap = listener.socket.getsockname()[1]
        await one.connect(f"/ip4/127.0.0.1/tcp/{tap}/p2p/{other.peer_id}", deadline_seconds=60)
        payload = bytes(range(256)) * 1000
        assert await world.exchange(one, other.peer_id, payload) == payload
        assert await world.exchange(other, one.peer_id, payload) == payload
        assert len(tapped) == 2 and all(len(passed) > len(payload) for passed in tapped)
        assert not any(b"multistream" in passed for passed in tapped)

    tell_on_sockets(story)


@pytest.mark.parametrize("theirs", [None, THEIRS], ids=["without a key", "with another key"])
def test_stranger_that_we_dial_is_refused_at_once_with_a_message_that_says_why(tell_on_sockets, theirs) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        ours, stranger = host(OURS), host(theirs)
        async with ours.run(), stranger.run():
            begun = trio.current_time()
            with pytest.raises(RefusedError, match="invite"):
                await ours.connect(stranger.addresses()[0], deadline_seconds=60)
            await world.eventually(lambda: not stranger._meter.open)
            assert trio.current_time() - begun < HANDSHAKE_SECONDS
            assert (ours.peers(), stranger.peers()) == ([], [])
            assert ours.failures.counts["private network"] == 1
            assert stranger.failures.counts["private network"] == (theirs is not None)

    tell_on_sockets(story)


@pytest.mark.parametrize("theirs", [None, THEIRS], ids=["without a key", "with another key"])
def test_stranger_that_dials_us_is_refused_at_once_on_both_sides(tell_on_sockets, theirs) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        ours, stranger = host(OURS), host(theirs)
        async with ours.run(), stranger.run():
            begun = trio.current_time()
            for _ in range(20):  # a stranger reads the noise that it receives differently each time
                with pytest.raises(UnreachableError, match="invite") as refusal:
                    await stranger.connect(ours.addresses()[0], deadline_seconds=60)
                assert isinstance(refusal.value, RefusedError) is (theirs is not None)
            await world.eventually(lambda: not ours._meter.open)
            assert trio.current_time() - begun < HANDSHAKE_SECONDS
            assert (ours.peers(), stranger.peers()) == ([], [])
            assert ours.failures.counts["private network"] == 20

    tell_on_sockets(story)


def test_former_key_still_lets_in_who_dials_and_is_answered_under_it_but_is_no_key_to_dial_with(
    tell_on_sockets,
) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        world.make = lambda: host(THEIRS, OURS)
        (changed,) = await world.start(tasks, 1)
        world.make = lambda: host(OURS)
        (was_away,) = await world.start(tasks, 1)
        with pytest.raises(RefusedError) as refusal:
            await changed.connect(was_away.addresses()[0], deadline_seconds=60)
        assert refusal.value.reason == "wrong_psk"
        await was_away.connect(changed.addresses()[0], deadline_seconds=60)
        assert await world.exchange(was_away, changed.peer_id, b"I was away") == b"I was away"

    tell_on_sockets(story)


def test_silent_stranger_is_dropped_and_gets_no_byte() -> None:
    class Silent(Wire):
        is_initiator = False

        async def read(self, n: int | None = None) -> bytes:
            await trio.sleep_forever()

    async def main() -> None:
        wire = Silent()
        connection = PrivateConnection(wire, [OURS])  # type: ignore[arg-type]
        await connection.write(GREETING)
        with pytest.raises(PrivateNetworkError, match="5 s"):
            await connection.read(1)
        assert wire.closed and not wire.sent

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_members_go_on_talking_and_nothing_is_kept_of_hundreds_of_strangers(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        world.make = lambda: host(OURS)
        one, other = await world.chain(tasks, 2)
        port = port_of(other)

        async def intrude() -> None:
            async with await trio.open_tcp_stream("127.0.0.1", port) as socket:
                await socket.send_all(GREETING)
                while await socket.receive_some(1000):
                    pass

        for _ in range(300):
            try:
                await intrude()
            except trio.BrokenResourceError:  # a reset: our bytes were on their way when the connection closed
                continue
        await world.eventually(lambda: len(other._meter.open) == 1)
        assert other.failures.counts["private network"] == 300
        assert {str(peer) for peer in other._network.peerstore.peer_ids()} <= {one.peer_id, other.peer_id}
        assert await world.exchange(one, other.peer_id, b"unmoved") == b"unmoved"

    tell_on_sockets(story)


@pytest.mark.parametrize(
    "noise", [b"\x03\xff\xfe\n", b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(20)], ids=["no text", "length"]
)
def test_noise_in_place_of_a_greeting_is_an_unreachable_peer_and_allocates_nothing(tell_on_sockets, noise) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        async def garble(socket: trio.SocketStream) -> None:
            await socket.send_all(noise)

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        tasks.start_soon(trio.serve_listeners, garble, [listener])
        port = listener.socket.getsockname()[1]
        async with (stranger := host(None)).run():
            with pytest.raises(UnreachableError, match="invite"):
                await stranger.connect(
                    f"/ip4/127.0.0.1/tcp/{port}/p2p/{NodeKey.generate().peer_id}", deadline_seconds=60
                )

    tell_on_sockets(story)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 80, b"<!DOCTYPE HTML>" + b"y" * 80])
def test_web_server_in_place_of_a_node_is_called_what_it_is_and_its_text_is_not_shown(tell_on_sockets, answer) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        async def serve(socket: trio.SocketStream) -> None:
            await socket.send_all(answer)

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        tasks.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        async with (stranger := host(None)).run():
            with pytest.raises(UnreachableError, match="no starling node") as refused:
                await stranger.connect(
                    f"/ip4/127.0.0.1/tcp/{port}/p2p/{NodeKey.generate().peer_id}", deadline_seconds=60
                )
        assert "invite" not in str(refused.value) and "DOCTYPE" not in str(refused.value)

    tell_on_sockets(story)


@pytest.mark.parametrize("step", [1, 3, 8, 9, 27, 1000])
def test_bytes_that_arrive_in_pieces_of_any_size_come_out_whole(step: int) -> None:
    raw = encrypted(OURS, GREETING, b"and ", b"more")

    async def read() -> bytes:
        connection = PrivateConnection(Wire(*(raw[at : at + step] for at in range(0, len(raw), step))), [OURS])  # type: ignore[arg-type]
        received = b""
        while piece := await connection.read(7):
            received += piece
        return received

    assert trio.run(read) == GREETING + b"and more"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "closed the connection before"),
        (b"1234567", "closed the connection before"),
        (encrypted(OURS, GREETING)[:-1], "closed the connection before"),
        (encrypted(THEIRS, GREETING), "does not hold"),
        (GREETING, "does not hold"),
        (encrypted(OURS, GREETING[:-1] + b"!"), "does not hold"),
    ],
    ids=["nothing", "half a nonce", "cut greeting", "another key", "no key", "another greeting"],
)
def test_connection_ends_with_the_first_byte_that_is_not_as_it_must_be(raw: bytes, words: str) -> None:
    async def read() -> None:
        wire = Wire(raw)
        connection = PrivateConnection(wire, [OURS])  # type: ignore[arg-type]
        with pytest.raises(PrivateNetworkError, match=words) as refusal:
            await connection.read(100)
        assert wire.closed
        assert OURS.hex() not in str(refusal.value)

    trio.run(read)


def test_key_of_a_wrong_length_is_our_own_bug_and_not_shown() -> None:
    with pytest.raises(ValueError, match="31") as refusal:
        PrivateConnection(Wire(), [OURS[:31]])  # type: ignore[arg-type]
    assert OURS[:31].hex() not in str(refusal.value)
    ours = host(OURS)
    assert OURS.hex() not in repr(ours) + repr(ours._network) + repr(ours._network.upgrader)
