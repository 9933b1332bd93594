"""Many members of a swarm in one process, each with a place at one relay: ``reach --memory`` starts it in a namespace.

    python -m scripts.bench.common.light_clients RELAY_ADDRESS SWARM_ID CLIENTS

Every client is a real host of its own, which dials the relay from an address of its own (``client_ip``), says who it is
in, takes a place and sends heartbeats. Once all have a place it prints a line, and until it is killed one client a
second dials another through the relay and sends ``PASSED_BYTES``.
"""

from __future__ import annotations

import sys
import time
from random import Random
from typing import Final

import anyio

from protocol.errors import StarlingError
from protocol.identity import NodeKey
from protocol.messages import Heartbeat
from swarm.announcements.gossip import Gossip
from swarm.host import Address, Stream
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.unwrapping import unwrapped
from swarm.peers.discovery import CIRCUIT
from swarm.peers.peer_exchange import PeerExchange

CLIENTS_PER_NETWORK: Final = 10  # a relay gives places to 16 of one /24
AT_ONCE: Final = 4  # that join; a process of one core answers all of them
START_SECONDS: Final = 0.1  # between two that start
HEARTBEAT_SECONDS: Final = 100.0  # every client verifies everybody's: few, and never as late as one that is gone
LOOK_SECONDS: Final = 2.0  # between two looks whether the place was lost; as ``peers.reaching`` does
MESH_SECONDS: Final = 3  # between two beats of a client's mesh, which are most of what an idle one costs
PASSED_BYTES: Final = 16 << 10
ECHO: Final = "/bench/echo/1"


def client_ip(number: int) -> str:
    """Returns an address of the range for benchmarks (RFC 2544), ``CLIENTS_PER_NETWORK`` in a network."""
    return f"198.18.{number // CLIENTS_PER_NETWORK}.{1 + number % CLIENTS_PER_NETWORK}"


async def echo(stream: Stream) -> None:
    while piece := await stream.receive(PASSED_BYTES):
        await stream.send(piece)


class Client:
    def __init__(self, number: int, relay: str, swarm_id: bytes) -> None:
        key = NodeKey(number.to_bytes(32, "big"))
        self.host = Libp2pHost(key, [f"/ip4/{client_ip(number)}/tcp/4001"])
        self.host._pubsub.mesh.heartbeat_interval = MESH_SECONDS
        self.host.handle(ECHO, echo)
        self.placed = anyio.Event()
        self._relay, self._name = relay, f"client-{number}"
        self._gossip = Gossip(self.host, key, swarm_id, wall_clock=time.time)
        self._exchange = PeerExchange(self.host, swarm_id, on_addresses=lambda *_: None, addresses_for=lambda *_: ())

    async def live(self, turns: anyio.CapacityLimiter) -> None:
        """Runs until cancelled. It takes its place anew where that failed, or the place was lost, as a node does."""
        async with self.host.run(), anyio.create_task_group() as tasks:
            await self._gossip.start()
            await self._keep_place(turns)
            self.placed.set()
            tasks.start_soon(self._beat)
            while True:
                await anyio.sleep(LOOK_SECONDS)
                await self._keep_place(turns)

    async def _keep_place(self, turns: anyio.CapacityLimiter) -> None:
        while not self.host.relaying().relays:
            if self.placed.is_set():
                print(f"{self._name} has lost its place", file=sys.stderr)
            try:
                async with turns:
                    await self._take_place()
            except StarlingError as error:
                print(f"{self._name}: {error}", file=sys.stderr)
                await anyio.sleep(1.0)

    async def _beat(self) -> None:
        none = bytes(16)
        while True:
            await self._gossip.announce(Heartbeat(self._name, "bench", "wren", none, none, 1, 1, "", 0.0, 0, 0, ()))
            await anyio.sleep(HEARTBEAT_SECONDS)

    async def _take_place(self) -> None:
        peer = await self.host.connect(self._relay, deadline_seconds=60)
        try:
            await self._exchange.ask(peer)
            await self.host.reserve(peer, deadline_seconds=60)
        except StarlingError:
            await self.host.disconnect(peer)  # the relay may have dialled: nobody behind a router is dialled
            raise

    def circuit(self) -> Address | None:
        return next((a for a in self.host.addresses() if CIRCUIT in a), None)

    async def pass_through_relay(self, other: Client) -> None:
        circuit = other.circuit()
        if circuit is None:
            return
        try:
            peer = await self.host.connect(circuit, deadline_seconds=10)
            with anyio.fail_after(10):
                stream = await self.host.open_stream(peer, ECHO, deadline_seconds=10)
                await stream.send(bytes(PASSED_BYTES))
                await stream.receive(PASSED_BYTES)
                await stream.reset()
            await self.host.disconnect(peer)
        except (StarlingError, TimeoutError) as error:
            print(f"{self._name}: {error}", file=sys.stderr)


async def run(relay: str, swarm_id: bytes, number: int) -> None:
    clients = [Client(each, relay, swarm_id) for each in range(number)]
    random = Random(0)
    turns = anyio.CapacityLimiter(AT_ONCE)
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            for client in clients:
                tasks.start_soon(client.live, turns)
                await anyio.sleep(START_SECONDS)
            for client in clients:
                await client.placed.wait()
            print(f"{number} clients have a place", flush=True)
            while True:
                one, other = random.sample(clients, 2)
                await one.pass_through_relay(other)
                await anyio.sleep(1.0)


if __name__ == "__main__":
    anyio.run(run, sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3]), backend="trio")
