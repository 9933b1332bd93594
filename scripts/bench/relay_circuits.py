"""What one circuit takes in the memory of a relay, and what is left of it once it has ended.

    python -m scripts.bench.relay_circuits [--piece-bytes 30000] [--json]

The relay is a host in a process of its own, whose allocations ``tracemalloc`` counts. ``PEERS`` hosts of this process
take a place there, and each opens a circuit to every other one. A piece passes each circuit in either direction, and
then nothing. All that is counted is in use: what an allocator keeps for later is not part of it. trio drops deadlines
that have ended a thousand at a time: 0.2 MB that come and go, up to 4 kB for each of these circuits.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tracemalloc
from contextlib import AsyncExitStack
from itertools import permutations
from typing import Any, Final

import anyio
import anyio.to_thread
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, Status, StopMessage

from protocol.identity import NodeKey
from scripts.bench.common.processes import LISTEN, child, line_of, tell
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.host import Stream
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.libp2p.relaying.circuit_messages import HOP_PROTOCOL, STOP_PROTOCOL, receive_message, send_message

PEERS: Final = 8  # each has 14 ends of circuits: a relay gives a peer 16
DEADLINE_SECONDS: Final = 10.0
SETTLING_SECONDS: Final = 2.0


async def relay() -> None:
    """Prints the address of a relay, and at each line of standard input how much it has allocated since."""
    host = Libp2pHost(NodeKey.generate(), [LISTEN])
    async with host.run():
        host.serve_as_relay(lambda peer: True)
        say(address=host.addresses()[0])
        tracemalloc.start()
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            gc.collect()
            say(bytes=tracemalloc.get_traced_memory()[0], circuits=host.relaying().circuits)


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Peers:
    """Hosts with a place at one relay."""

    def __init__(self, relay: str, address: str, piece_bytes: int) -> None:
        self._relay, self._address, self._piece = relay, address, bytes(piece_bytes)
        self._hosts: list[Libp2pHost] = []

    async def start(self, stack: AsyncExitStack) -> None:
        for _ in range(PEERS):
            host = Libp2pHost(NodeKey.generate(), [LISTEN])
            await stack.enter_async_context(host.run())
            await host.connect(self._address, deadline_seconds=DEADLINE_SECONDS)
            await host.reserve(self._relay, deadline_seconds=DEADLINE_SECONDS)
            host.handle(STOP_PROTOCOL, self._on_stop)
            self._hosts.append(host)

    async def _on_stop(self, stream: Stream) -> None:
        await receive_message(stream, StopMessage)
        await send_message(stream, StopMessage(type=StopMessage.STATUS, status=Status.OK))
        await stream.send(self._piece)
        while await stream.receive(1 << 16):
            pass

    async def circuits(self) -> list[Stream]:
        """Opens one from each to every other, and returns them once a piece has arrived over each."""
        opened = []
        for source, target in permutations(self._hosts, 2):
            stream = await source.open_stream(self._relay, HOP_PROTOCOL, deadline_seconds=DEADLINE_SECONDS)
            wanted = PeerId(id=ID.from_string(target.peer_id).to_bytes())
            await send_message(stream, HopMessage(type=HopMessage.CONNECT, peer=wanted))
            reply = await receive_message(stream, HopMessage)
            if reply.status != Status.OK:
                sys.exit(f"the relay refused a circuit: status {reply.status}")
            await stream.send(self._piece)
            left = len(self._piece)
            while left:
                left -= len(await stream.receive(left))
            opened.append(stream)
        await anyio.sleep(SETTLING_SECONDS)
        return opened


async def measured(process: subprocess.Popen[str], address: str, piece_bytes: int) -> list[Figure]:
    async def look() -> dict[str, Any]:
        await anyio.sleep(SETTLING_SECONDS)
        tell(process)
        return dict(json.loads(await anyio.to_thread.run_sync(line_of, process)))

    async def end(circuits: list[Stream]) -> None:
        for stream in circuits:
            await stream.reset()

    async with AsyncExitStack() as stack:
        peers = Peers(address.rpartition("/")[2], address, piece_bytes)
        await peers.start(stack)
        await end(await peers.circuits())  # what the first ones leave in tables is not theirs
        before = await look()
        circuits = await peers.circuits()
        during = await look()
        await end(circuits)
        after = await look()
    if (before["circuits"], during["circuits"], after["circuits"]) != (0, len(circuits), 0):
        sys.exit(f"not {len(circuits)} circuits for a time: {before}, {during}, {after}")
    return [
        Figure("memory of a circuit", (during["bytes"] - before["bytes"]) / len(circuits) / 1000, "kB", "lower"),
        Figure("left of it", (after["bytes"] - before["bytes"]) / len(circuits) / 1000, "kB", "lower"),
        Figure("circuits", len(circuits), "", "higher"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--piece-bytes", type=int, default=30_000)
    parser.add_argument("--relay", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.relay:
        anyio.run(relay, backend="trio")
        return
    with child("scripts.bench.relay_circuits", "--relay") as process:
        address = json.loads(line_of(process))["address"]
        figures = anyio.run(measured, process, address, options.piece_bytes, backend="trio")
    report("circuits of a relay", figures, as_json=options.json)


if __name__ == "__main__":
    main()
