"""When a node has its router open a port, and what follows, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from protocol.errors import MalformedError, RefusedError, StarlingError
from protocol.streams.dial_back_messages import (
    DIAL_BACK_PROTOCOL,
    DialBackAnswer,
    DialBackQuestion,
    decode_dial_back_message,
)
from protocol.streams.framing import framed_message
from swarm import api
from swarm.host import Stream
from swarm.hosts.simulated.network import SimulatedHost
from swarm.peers.port_rules import (
    DOUBT_SECONDS,
    LEASE_SECONDS,
    RETRY_MOST_SECONDS,
    RETRY_SECONDS,
    SHORTEST_LEASE_SECONDS,
    START_SECONDS,
    PortState,
    port_in_words,
    private_listening,
    why_to_ask,
)
from swarm.peers.reachability import REPORT_SECONDS, Reach
from swarm.router import OpenedPort
from swarm.service import SwarmService
from swarm.stream_reader import StreamReader, read_frame
from tests.swarm.test_service import Swarm, play

PUBLIC = "203.0.113.9"
HERE = {"192.168.1.5": 4001}
OPENED = OpenedPort("PCP", PUBLIC, 4001, "192.168.1.5", 4001, LEASE_SECONDS)
KEPT = PortState(OPENED, opened_at_seconds=1000.0)


class RouterOfOne:
    """A router before one simulated host, which lets peers in for as long as a port is open."""

    def __init__(self, host: SimulatedHost, external_ip: str = PUBLIC, external_port: int = 4001) -> None:
        self.host, self.external_ip, self.external_port = host, external_ip, external_port
        self.fails: StarlingError | None = None
        self.asked: list[float] = []
        self.closed: list[OpenedPort] = []

    async def open(self, listening: Mapping[str, int], *, wanted_port: int, lease_seconds: int) -> OpenedPort:
        self.asked.append(anyio.current_time())
        if self.fails is not None:
            raise self.fails
        self.host.connections.can_be_dialled = True
        ((ip, port),) = listening.items()
        return OpenedPort("NAT-PMP", self.external_ip, self.external_port, ip, port, lease_seconds)

    async def close(self, opened: OpenedPort) -> None:
        self.closed.append(opened)
        self.host.connections.can_be_dialled = False

    def forget(self) -> None:
        self.host.connections.can_be_dialled = False


def reach(service: SwarmService) -> api.ReachStatus:
    return service.reaching.status()


@pytest.mark.parametrize(
    ("now_seconds", "state", "reach", "listening", "asks"),
    [
        (START_SECONDS - 1, PortState(), Reach.UNKNOWN, HERE, False),  # peers may reach it as it is
        (START_SECONDS, PortState(), Reach.UNKNOWN, HERE, True),
        (START_SECONDS, PortState(), Reach.NOWHERE, HERE, True),
        (START_SECONDS, PortState(), Reach.INTERNET, HERE, False),
        (START_SECONDS, PortState(), Reach.LOCAL_NETWORK, HERE, False),
        (START_SECONDS, PortState(), Reach.NOWHERE, {}, False),
        (1000.0 + LEASE_SECONDS / 2 - 1, KEPT, Reach.INTERNET, HERE, False),
        (1000.0 + LEASE_SECONDS / 2, KEPT, Reach.INTERNET, HERE, True),
        (1000.0 + DOUBT_SECONDS - 1, KEPT, Reach.NOWHERE, HERE, False),
        (1000.0 + DOUBT_SECONDS, KEPT, Reach.NOWHERE, HERE, True),  # the router may have forgotten
        (1001.0, KEPT, Reach.INTERNET, {"192.168.7.5": 4001}, True),  # the machine moved
        (1001.0, KEPT, Reach.INTERNET, {"192.168.1.5": 4002}, True),
        (1000.0 + SHORTEST_LEASE_SECONDS / 2 - 1,
         PortState(OpenedPort("PCP", PUBLIC, 4001, "192.168.1.5", 4001, 1.0), 1000.0), Reach.INTERNET, HERE, False),
    ],
)  # fmt: skip
def test_a_port_is_asked_for_where_it_helps_and_renewed_at_half_its_time(
    now_seconds: float, state: PortState, reach: Reach, listening: Mapping[str, int], asks: bool
) -> None:
    assert (why_to_ask(now_seconds, 0.0, state, reach, listening) is not None) is asks


@pytest.mark.parametrize(("failures", "wait"), [(1, RETRY_SECONDS), (2, 2 * RETRY_SECONDS), (99, RETRY_MOST_SECONDS)])
def test_after_failures_the_router_is_left_alone_unless_the_network_changed(failures: int, wait: float) -> None:
    state = PortState(failures=failures, failed_at_seconds=1000.0, failed_with=HERE, why="silence")
    assert why_to_ask(1000.0 + wait - 1, 0.0, state, Reach.NOWHERE, HERE) is None
    assert why_to_ask(1000.0 + wait, 0.0, state, Reach.NOWHERE, HERE) is not None
    assert why_to_ask(1001.0, 0.0, state, Reach.NOWHERE, {"10.0.0.5": 4001}) is not None
    assert "silence" in port_in_words(state)


def test_only_a_machine_without_a_public_address_asks_and_names_its_private_ones() -> None:
    own = [("127.0.0.1", 4001), ("192.168.1.5", 4001), ("2001:db8::1", 4001), ("169.254.1.1", 4001), ("no", 1)]
    assert private_listening(own) == HERE
    assert private_listening([*own, (PUBLIC, 4001)]) == {}
    assert private_listening(own[:1]) == {}


def test_a_node_that_nobody_reaches_has_its_router_open_a_port_again_where_it_forgot_and_gives_it_back(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        inside = swarm.network.host("inside", can_be_dialled=False)
        router = RouterOfOne(inside)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            async with swarm.member("inside", a, b, host=inside, router=router) as node:
                await anyio.sleep(60.0)
                assert reach(node).reach == Reach.LOCAL_NETWORK, "peers were asked to dial again at once"
                assert "the router opened TCP port 4001 (NAT-PMP)" in reach(node).in_words
                announced = f"/ip4/{PUBLIC}/tcp/4001/p2p/{inside.peer_id}"
                assert inside.addresses()[0] == announced
                assert len(router.asked) == 1

                router.forget()
                forgotten_at = anyio.current_time()
                await anyio.sleep(REPORT_SECONDS + 60.0)
                assert len(router.asked) == 2, "peers that did not reach this node any more are reason enough"
                assert router.asked[-1] - forgotten_at < LEASE_SECONDS / 2
                assert reach(node).reach == Reach.LOCAL_NETWORK
                assert inside.addresses()[0] == announced
                node.leave("done")
                await anyio.sleep(5.0)
            assert [each.external_port for each in router.closed] == [4001]

    play(story)


@pytest.mark.parametrize(
    ("external_ip", "fails", "says"),
    [
        ("100.64.0.9", None, "another router lies before it"),
        ("192.168.178.20", None, "another router lies before it"),
        (PUBLIC, RefusedError("the router refuses by UPnP: not authorized"), "not authorized"),
        (PUBLIC, MalformedError("the router sends no XML"), "no XML"),
    ],
)
def test_a_router_that_helps_nothing_is_left_alone_and_named(
    tmp_path: Path, external_ip: str, fails: StarlingError | None, says: str
) -> None:
    async def story() -> None:
        swarm = Swarm(tmp_path)
        inside = swarm.network.host("inside", can_be_dialled=False)
        router = RouterOfOne(inside, external_ip)
        router.fails = fails
        async with (
            swarm.member("a") as a,
            swarm.member("b", a) as b,
            swarm.member("inside", a, b, host=inside, router=router) as node,
        ):
            await anyio.sleep(180.0)
            assert 2 <= len(router.asked) <= 3
            assert len(router.closed) == (0 if fails else len(router.asked)), "nothing is left open"
            assert reach(node).reach == Reach.NOWHERE
            assert says in reach(node).in_words
            assert "forward TCP port 4001" in reach(node).in_words
            assert not any(external_ip in address for address in inside.addresses())
            assert sum(node.reaching.failures.values()) >= len(router.asked)

    play(story)


@pytest.mark.parametrize("lets_in", [True, False])
def test_peers_dial_the_routers_port_first_and_it_is_announced_only_while_they_reach_it(
    tmp_path: Path, lets_in: bool
) -> None:
    asked: list[tuple[int, ...]] = []
    inside_peers: list[str] = []

    async def answer(stream: Stream) -> None:
        frame = await read_frame(StreamReader(stream, stall_seconds=5).exactly, max_bytes=1000, what="a question")
        ports = decode_dial_back_message(frame, DialBackQuestion).ports
        if stream.peer == inside_peers[0]:
            asked.append(ports)
        reached = (40123,) if lets_in and 40123 in ports else ()
        await stream.send(framed_message(DialBackAnswer(True, PUBLIC, reached)))

    async def story() -> None:
        swarm = Swarm(tmp_path)
        inside = swarm.network.host("inside", can_be_dialled=False)
        inside_peers.append(inside.peer_id)
        router = RouterOfOne(inside, external_port=40123)
        async with swarm.member("a") as a, swarm.member("b", a) as b:
            for peer in (a, b):
                peer.host.handle(DIAL_BACK_PROTOCOL, answer)
            async with swarm.member("inside", a, b, host=inside, router=router) as node:
                await anyio.sleep(120.0)
                assert asked == [(4001,)] * 2 + [(40123, 4001)] * 2
                announced = f"/ip4/{PUBLIC}/tcp/40123/p2p/{inside.peer_id}"
                if lets_in:
                    assert reach(node).reach == Reach.INTERNET
                    assert inside.addresses().count(announced) == 1
                else:
                    assert reach(node).reach == Reach.NOWHERE
                    assert announced not in inside.addresses()
                    assert "the router opened TCP port 40123" in reach(node).in_words
                    assert "forward TCP port 4001 " in reach(node).in_words
                if not lets_in:
                    await anyio.sleep(DOUBT_SECONDS)
                    assert len(router.asked) == 2, "a router that may have forgotten is asked again, seldom"

    play(story)
