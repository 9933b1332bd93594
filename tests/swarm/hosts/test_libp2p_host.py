"""The py-libp2p host on sockets: ports, strangers, and the limits on peers that misbehave."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V12

from protocol.errors import TransportError, UnreachableError
from protocol.identity import NodeKey
from swarm.api import Wanted
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.store import ContentStore
from swarm.host import LanSwarm, Stream
from swarm.hosts.lan import decode_swarm, decode_txt, encode_txt
from swarm.hosts.libp2p import yamux
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.libp2p.libp2p_stream import Libp2pStream
from swarm.hosts.libp2p.transport import CONNECTIONS_PER_PEER
from swarm.hosts.libp2p.yamux import UNREAD_BYTES
from swarm.hosts.network_interfaces import dialable
from swarm.peers.peer_exchange import PeerExchange
from swarm.peers.reputation import Conduct

ANY_PORT = "/ip4/127.0.0.1/tcp/0"


def held_streams(*hosts: Libp2pHost) -> list[str]:
    """Protocols of the streams that the library keeps, except those of gossip, which are meant to last."""
    streams = [stream for host in hosts for c in host._network.get_connections() for stream in c.get_streams()]
    return [str(s.get_protocol()) for s in streams if s.get_protocol() != PROTOCOL_ID_V12]


def test_port_that_is_taken_is_an_error_that_names_it_and_the_remedy(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        (first,) = await world.start(tasks, 1)
        taken = first.addresses()[0].rpartition("/p2p/")[0]
        with pytest.raises(TransportError, match=f"{taken}.*port 0"):
            async with Libp2pHost(NodeKey.generate(), [ANY_PORT, taken]).run():
                pass

    tell_on_sockets(story)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_host_on_every_interface_is_dialled_over_ipv6_too_at_the_same_port(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        everywhere, visitor = Libp2pHost(NodeKey.generate(), ["/ip4/0.0.0.0/tcp/0"]), Libp2pHost(NodeKey.generate(), [])
        async with everywhere.run(), visitor.run():
            addresses = everywhere.addresses()
            assert len({address.split("/")[4] for address in addresses}) == 1
            await visitor.connect(next(a for a in addresses if a.startswith("/ip6/::1/")), deadline_seconds=10)
            assert visitor.peers() == [everywhere.peer_id] and everywhere.remote_ip(visitor.peer_id) == "::1"

    tell_on_sockets(story)


def test_exception_of_what_runs_on_the_host_comes_out_as_itself(tell) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        host = world.make()
        with pytest.raises(ZeroDivisionError, match="our own"):
            async with host.run():
                raise ZeroDivisionError("our own")

    tell(story)


def test_connections_that_ended_give_back_their_places(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        small = Libp2pHost(NodeKey.generate(), [ANY_PORT], connections=1)
        visitor = Libp2pHost(NodeKey.generate(), [])
        async with small.run(), visitor.run():
            for _ in range(2):
                while not visitor.peers():
                    with contextlib.suppress(UnreachableError):  # refused until the place is free
                        await visitor.connect(small.addresses()[0], deadline_seconds=10)
                    await trio.sleep(0.02)
                await visitor.disconnect(small.peer_id)
                await world.eventually(lambda: not small.peers())

    tell_on_sockets(story)


def test_connection_beyond_those_that_one_key_may_have_is_refused_at_once(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        (host,) = await world.start(tasks, 1)
        key, refused = NodeKey.generate(), "3 connections with this key are open already"
        hosts = [Libp2pHost(key, []) for _ in range(CONNECTIONS_PER_PEER + 2)]
        async with contextlib.AsyncExitStack() as stack:
            for again in hosts:
                await stack.enter_async_context(again.run())
            async with trio.open_nursery() as dials:  # at the same moment: none slips past the others

                async def dial(again: Libp2pHost) -> None:
                    try:
                        await again.connect(host.addresses()[0], deadline_seconds=10)
                    except UnreachableError as error:
                        refusals.append(str(error))

                refusals: list[str] = []
                for again in hosts:
                    dials.start_soon(dial, again)
            assert len(refusals) == 2 and all(refused in refusal for refusal in refusals)
            assert host.failures.counts["surplus connection"] == 2
            assert len(host._network.get_connections()) == CONNECTIONS_PER_PEER
            connected, waiting = (
                next(again for again in hosts if bool(again.peers()) is is_connected) for is_connected in (True, False)
            )
            await connected.disconnect(host.peer_id)
            await world.eventually(lambda: len(host._network.get_connections()) < CONNECTIONS_PER_PEER)
            await waiting.connect(host.addresses()[0], deadline_seconds=10)

    tell_on_sockets(story)


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), b"\x13/multistream/1.0.0\n" + b"\xff" * 999]
)
def test_bytes_of_a_stranger_that_are_no_handshake_change_nothing(tell_on_sockets, noise: bytes) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.start(tasks, 2)
        port = int(other.addresses()[0].split("/")[4])
        async with await trio.open_tcp_stream("127.0.0.1", port) as socket:
            with anyio.move_on_after(0.2), contextlib.suppress(trio.BrokenResourceError):
                await socket.send_all(noise)
                await socket.receive_some()
        await one.connect(other.addresses()[0], deadline_seconds=10)
        assert await world.exchange(one, other.peer_id, b"unmoved") == b"unmoved"

    tell_on_sockets(story)


def test_peer_that_sends_beyond_its_windows_is_dropped_before_it_fills_the_memory(tell_on_sockets) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        flooder, victim = await world.chain(tasks, 2)

        async def never_read(stream: Stream) -> None:
            await anyio.sleep_forever()

        victim.handle("/test/deaf/1", never_read)
        stream = await flooder.open_stream(victim.peer_id, "/test/deaf/1", deadline_seconds=10)
        assert isinstance(stream, Libp2pStream)
        stream._yamux.send_window = 1 << 40
        with pytest.raises(UnreachableError):
            await stream.send(bytes(4 * UNREAD_BYTES))
        assert victim.traffic().received_bytes < 2 * UNREAD_BYTES
        await world.eventually(lambda: not victim.peers())

    tell_on_sockets(story)


def test_unread_bytes_of_many_peers_that_keep_to_their_windows_are_bounded_together(
    tell_on_sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yamux, "ALL_UNREAD_BYTES", 2 << 20)
    monkeypatch.setattr(yamux, "ALL_CHECKED_EVERY_BYTES", 1 << 19)

    async def story(world: Any, tasks: trio.Nursery) -> None:
        victim, honest, *others = await world.start(tasks, 5)

        async def never_read(stream: Stream) -> None:
            await anyio.sleep_forever()

        victim.handle("/test/deaf/1", never_read)
        for host in (honest, *others):
            await host.connect(victim.addresses()[0], deadline_seconds=10)

        async def fill(host: Any) -> None:
            with contextlib.suppress(UnreachableError):
                stream = await host.open_stream(victim.peer_id, "/test/deaf/1", deadline_seconds=10)
                await stream.send(bytes((1 << 18) - 1024))  # its window, less what opened the stream

        async with trio.open_nursery() as fills:
            for host in others:
                for _ in range(8):
                    fills.start_soon(fill, host)
        connections = [c.muxed_conn for each in victim._network.connections.values() for c in each]
        assert sum(c.unread_bytes() for c in connections) <= (2 << 20) + (1 << 19) + (1 << 18)
        await world.eventually(lambda: len(victim.peers()) < 4)
        assert honest.peer_id in victim.peers()
        assert await world.exchange(honest, victim.peer_id, bytes(1 << 20)) == bytes(1 << 20)

    tell_on_sockets(story)


def test_wildcard_becomes_every_address_of_its_kind_with_loopback_last() -> None:
    ips = ["127.0.0.1", "192.0.2.7", "::1", "2001:db8::7"]
    assert dialable([("0.0.0.0", 4001)], lambda: ips) == [("192.0.2.7", 4001), ("127.0.0.1", 4001)]
    assert dialable([("::", 4002), ("192.0.2.7", 4001)], lambda: ips) == [
        ("2001:db8::7", 4002),
        ("192.0.2.7", 4001),
        ("::1", 4002),
    ]


def test_a_host_that_listens_on_one_address_does_not_read_those_of_the_machine() -> None:
    def read() -> list[str]:
        raise AssertionError("read")

    assert dialable([("192.0.2.7", 4001)], read) == [("192.0.2.7", 4001)]


def test_lan_record_carries_addresses_and_nonsense_in_it_is_skipped() -> None:
    addresses = [f"/ip4/192.0.2.{n}/tcp/4001/p2p/peer{n}" for n in (1, 2)]
    assert decode_txt(encode_txt(addresses), exclude="nobody") == tuple(addresses)
    assert decode_txt(encode_txt(addresses), exclude="peer1") == (addresses[1],)
    assert len(decode_txt(encode_txt(addresses * 50), exclude="nobody")) == 8
    for nonsense in (b"\xff", b"\x05dnsad", b"\x08dnsaddr=", b"\x0ednsaddr=\xff/p2p/", b"\x00" * 300):
        assert decode_txt(nonsense + b"", exclude="nobody") == ()


def test_lan_record_names_the_open_swarm_and_nonsense_in_its_place_is_skipped() -> None:
    address, swarm = "/ip4/192.0.2.1/tcp/4001/p2p/peer1", LanSwarm("0f" * 16, "стая of wren")
    record = encode_txt([address], swarm)
    assert (decode_txt(record, exclude="nobody"), decode_swarm(record)) == ((address,), swarm)
    assert decode_swarm(encode_txt([address])) is None
    longest = LanSwarm("0f" * 16, "w" * 64)
    assert decode_swarm(encode_txt([], longest)) == longest
    for swarm_id, name in (("0F" * 16, "wren"), ("0f", "wren"), ("0f" * 17, "wren"), ("0f" * 16, ""), ("", "")):
        assert decode_swarm(encode_txt([address], LanSwarm(swarm_id, name))) is None
    claimed = decode_swarm(encode_txt([], LanSwarm("0f" * 16, "w" * 200)))
    assert claimed is not None and len(claimed.name) == 64


def test_fetches_and_peer_exchanges_leave_no_stream_behind_on_either_side(tell_on_sockets, tmp_path: Path) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.chain(tasks, 2)

        async def reach(peer: str, deadline_seconds: float) -> None:
            assert peer in one.peers()

        def report(peer: str, conduct: Conduct, detail: str) -> None:
            raise AssertionError(f"{conduct}: {detail}")

        stores = [ContentStore(tmp_path / name) for name in ("one", "other")]
        server = BlobServer(other, stores[1], upload_bytes_per_second=0.0, report=report)
        fetcher = Fetcher(one, stores[0], reach=reach, report=report)
        asking = PeerExchange(one, bytes(16), on_addresses=lambda *_: None, addresses_for=lambda *_: ())
        PeerExchange(other, bytes(16), on_addresses=lambda *_: None, addresses_for=lambda *_: ())
        for number in range(5):
            content = bytes([number]) * 1000
            wanted = Wanted(stores[1].put(content), len(content), (other.peer_id,))
            (fetched,) = await fetcher.fetch([wanted], deadline_seconds=30)
            assert fetched.is_here
            await asking.ask(other.peer_id)
        assert server.refused == {}
        await world.eventually(lambda: not held_streams(one, other))

    tell_on_sockets(story)


def test_host_tells_from_which_ip_address_a_peer_is_connected(tell) -> None:
    async def story(world: Any, tasks: trio.Nursery) -> None:
        one, other = await world.chain(tasks, 2)
        await world.eventually(lambda: other.peers() == [one.peer_id])
        assert other.remote_ip(one.peer_id) == one.addresses()[0].split("/")[2]
        assert one.remote_ip(other.peer_id) == other.addresses()[0].split("/")[2]
        await one.disconnect(other.peer_id)
        assert one.remote_ip(other.peer_id) == ""

    tell(story)
