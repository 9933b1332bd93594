"""Memory of a host that many peers send to, each within its windows, on streams that nobody reads.

    python -m scripts.attacks.blobs_memory [--connections 12] [--streams 100] [--json]

A process of its own runs the real host with a handler that never reads, like one that waits to write to its peer.
Attackers in this process open ``--streams`` streams each and send the 256 KiB that every new stream may hold. The
figures are the growth of the host's largest resident memory, for each connection and in all.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

import anyio

from protocol.errors import TransportError
from protocol.identity import NodeKey
from scripts.bench.common.process_usage import process_memory
from scripts.bench.common.processes import child, line_of
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.host import Stream
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

DEAF = "/attack/deaf/1"
LISTEN = "/ip4/127.0.0.1/tcp/0"
WINDOW_BYTES = 256 * 1024
SEND_SECONDS = 20.0


async def be_attacked() -> None:
    """The host's process: prints its address, ends when its standard input does."""
    host = Libp2pHost(NodeKey.generate(), [LISTEN])

    async def never_read(stream: Stream) -> None:
        await anyio.sleep_forever()

    host.handle(DEAF, never_read)
    async with host.run():
        print(host.addresses()[0], flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


async def _fill(host: Libp2pHost, peer: str, streams: int) -> None:
    with suppress(TransportError), anyio.move_on_after(SEND_SECONDS):
        for _ in range(streams):
            stream = await host.open_stream(peer, DEAF, deadline_seconds=5.0)
            await stream.send(bytes(WINDOW_BYTES))


def measure(connections: int, streams: int) -> tuple[int, int]:
    """The largest resident memory before and after."""
    with child("scripts.attacks.blobs_memory", "--be-attacked") as victim:
        address = line_of(victim)
        before = process_memory(victim.pid).peak
        anyio.run(attack, address, connections, streams, backend="trio")
        return before, process_memory(victim.pid).peak


async def attack(address: str, connections: int, streams: int) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(connections):
            await tasks.start(_attack_once, Libp2pHost(NodeKey.generate(), []), address, streams)
        tasks.cancel_scope.cancel()


async def _attack_once(
    host: Libp2pHost, address: str, streams: int, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """Fills its streams, and stays connected."""
    async with host.run():
        peer = await host.connect(address, deadline_seconds=10.0)
        await _fill(host, peer, streams)
        task_status.started()
        await anyio.sleep_forever()


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--connections", type=int, default=12)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--be-attacked", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_attacked:
        anyio.run(be_attacked, backend="trio")
        return
    before, after = measure(arguments.connections, arguments.streams)
    sent = arguments.connections * arguments.streams * WINDOW_BYTES
    figures = [
        Figure("sent within the windows", sent / 1e6, "MB", "higher"),
        Figure("growth of the victim", (after - before) / 1e6, "MB", "lower", "≤ 150"),
        Figure("growth for each connection", (after - before) / 1e6 / arguments.connections, "MB", "lower", "≤ 20"),
    ]
    report("blobs_memory", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
