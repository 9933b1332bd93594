"""The two worlds of the conformance tests of hosts: simulated in virtual time, py-libp2p on loopback."""

from __future__ import annotations

import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, pairwise
from typing import Any

import pytest
import trio
import trio.testing

from protocol.identity import NodeKey
from swarm.host import Host, PeerId, Stream
from swarm.hosts.go.go_host import GoHost
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from tests.hang_guard import HANG_SECONDS

# Where the wheel of the Go daemon exists: there its tests fail without it, elsewhere they are not collected.
HAS_DAEMON = (sys.platform, platform.machine()) == ("linux", "x86_64")
collect_ignore = [] if HAS_DAEMON else ["hosts/test_go_host.py"]

ECHO, TOPIC = "/test/echo/1", "test"


async def echo(stream: Stream) -> None:
    while piece := await stream.receive(10_000):
        await stream.send(piece)


class World(ABC):
    """Some hosts, each in a task of its own, so that one can vanish."""

    judges_first = True  # a message is judged before it is forwarded, and who forwarded it is known
    has_half_streams = True  # one direction of a stream can end before the other
    tells_resets = True  # a reset is no end of stream
    refuses_blocked = True  # a blocked peer is not let in; otherwise it is dropped
    stays_apart = True  # hosts that were disconnected are not connected again by what is below the swarm

    def __init__(self) -> None:
        self.bugs: list[BaseException] = []
        self._ended: dict[PeerId, trio.Event] = {}

    @abstractmethod
    def make(self) -> Host: ...

    @abstractmethod
    async def silent_address(self, stack: AsyncExitStack) -> str:
        """An address that takes connections, or at least packets, and never answers."""

    @abstractmethod
    def vanish(self, host: Host) -> None: ...

    @abstractmethod
    def rejections(self, host: Host, peer: PeerId) -> float: ...

    def faults(self, host: Host) -> dict[str, int]:
        assert isinstance(host, SimulatedHost | Libp2pHost | GoHost)
        return host.faults

    async def start(self, tasks: trio.Nursery, number: int) -> list[Host]:
        hosts = [self.make() for _ in range(number)]
        for host in hosts:
            host.handle(ECHO, echo)
            await tasks.start(self._live, host)
        return hosts

    async def chain(self, tasks: trio.Nursery, number: int) -> list[Host]:
        hosts = await self.start(tasks, number)
        for one, other in pairwise(hosts):
            await one.connect(other.addresses()[0], deadline_seconds=10)
        return hosts

    async def _live(self, host: Host, task_status: Any) -> None:
        self._ended[host.peer_id] = trio.Event()
        try:
            async with host.run():
                task_status.started()
                await trio.sleep_forever()
        except ZeroDivisionError as bug:
            self.bugs.append(bug)
        finally:
            self._ended[host.peer_id].set()

    async def ended(self, host: Host) -> None:
        await self._ended[host.peer_id].wait()

    @staticmethod
    async def read_all(stream: Stream) -> bytes:
        pieces = []
        while piece := await stream.receive(65_536):
            pieces.append(piece)
        return b"".join(pieces)

    @staticmethod
    async def send_and_close(stream: Stream, payload: bytes) -> None:
        await stream.send(payload)
        await stream.close()

    async def exchange(self, host: Host, peer: PeerId, payload: bytes) -> bytes:
        stream = await host.open_stream(peer, ECHO, deadline_seconds=10)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self.send_and_close, stream, payload)
            return await self.read_all(stream)
        raise AssertionError("unreachable")

    @staticmethod
    async def eventually(holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  the world's hang guard ends it
            await trio.sleep(0.02)


class SimulatedWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.network = SimulatedNetwork(seed=7)
        self._names = count()

    def make(self) -> Host:
        return self.network.host(f"host {next(self._names)}")

    async def silent_address(self, stack: AsyncExitStack) -> str:
        host = self.network.host("behind a cut")
        await stack.enter_async_context(host.run())
        self.network.partition([host], [h for h in self.network.hosts() if h is not host])
        return host.addresses()[0]

    def vanish(self, host: Host) -> None:
        assert isinstance(host, SimulatedHost)
        self.network.crash(host)

    def rejections(self, host: Host, peer: PeerId) -> float:
        assert isinstance(host, SimulatedHost)
        return host.scores[peer].rejected


class Libp2pWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self._scopes: dict[PeerId, trio.CancelScope] = {}

    def make(self) -> Host:
        return Libp2pHost(NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"])

    async def _live(self, host: Host, task_status: Any) -> None:
        with trio.CancelScope() as scope:
            self._scopes[host.peer_id] = scope
            await super()._live(host, task_status)

    async def silent_address(self, stack: AsyncExitStack) -> str:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await stack.enter_async_context(listener)
        port = listener.socket.getsockname()[1]
        return f"/ip4/127.0.0.1/tcp/{port}/p2p/{NodeKey.generate().peer_id}"

    def vanish(self, host: Host) -> None:
        self._scopes[host.peer_id].cancel()

    def rejections(self, host: Host, peer: PeerId) -> float:
        assert isinstance(host, Libp2pHost)
        return -min(host.gossip_score(peer, TOPIC), 0.0)


class GoWorld(Libp2pWorld):
    judges_first = False
    has_half_streams = False
    tells_resets = False
    refuses_blocked = False
    stays_apart = False

    def make(self) -> Host:
        return GoHost(NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"])

    async def exchange(self, host: Host, peer: PeerId, payload: bytes) -> bytes:
        stream = await host.open_stream(peer, ECHO, deadline_seconds=10)
        answer = b""
        async with trio.open_nursery() as tasks:
            tasks.start_soon(stream.send, payload)
            while len(answer) < len(payload):
                piece = await stream.receive(65_536)
                assert piece
                answer += piece
        await stream.finish(linger_seconds=5)
        return answer

    def rejections(self, host: Host, peer: PeerId) -> float:
        assert isinstance(host, GoHost)
        return host.gossip.rejections(peer)


WORLDS: dict[str, type[World]] = {"simulated": SimulatedWorld, "libp2p": Libp2pWorld}
if HAS_DAEMON:
    WORLDS["go"] = GoWorld
Story = Callable[[World, trio.Nursery], Awaitable[None]]


def play(story: Story, *, world: str) -> None:
    """Plays a story in a world of one kind, and ends everything that it started."""
    simulated = world == "simulated"

    async def main() -> None:
        with trio.fail_after(1000 * HANG_SECONDS if simulated else HANG_SECONDS):
            async with trio.open_nursery() as tasks:
                await story(WORLDS[world](), tasks)
                tasks.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0) if simulated else None)


@pytest.fixture(params=list(WORLDS))
def tell(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Plays a story in a world of each kind."""
    return partial(play, world=request.param)


@pytest.fixture(params=["simulated", "libp2p"])
def tell_relaying(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """The same without the Go daemon, which takes places at relays by itself."""
    return partial(play, world=request.param)


@pytest.fixture
def tell_on_sockets() -> Callable[[Story], None]:
    return partial(play, world="libp2p")
