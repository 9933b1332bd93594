"""Bytes that gossip sends for one announcement to 8 hosts, with IDONTWANT (GossipSub 1.2) and without.

    python -m scripts.bench.declined_messages [--hosts 8] [--messages 10] [--json]

Real libp2p on loopback, in one process; every host may send ``UPLOAD_BYTES_PER_SECOND``, as a home does, so that
messages wait in queues. Each message is published by the next host once all have the one before. Bytes are those of
the sockets, less what an idle swarm of the same age sends; a perfect tree would send a message once to each other host.
"""

from __future__ import annotations

import argparse

import anyio
from anyio.abc import TaskStatus

from protocol import limits
from protocol.identity import NodeKey
from scripts.bench.common.reporting import Figure, add_json_flag, report
from swarm.host import GossipVerdict
from swarm.hosts.bandwidth import Bandwidth
from swarm.hosts.libp2p.gossipsub import mesh
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

UPLOAD_BYTES_PER_SECOND = 500_000.0
SETTLE_SECONDS = 3.0
TOPIC = "bench"


async def sent_bytes(hosts: int, messages: int, size_bytes: int, large_bytes: int) -> float:
    """Returns the bytes sent for a message and host that receives it; raises if a message does not arrive."""
    mesh.LARGE_BYTES = large_bytes
    heard = [0] * hosts
    nodes = [
        Libp2pHost(NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"], bandwidth=Bandwidth(UPLOAD_BYTES_PER_SECOND))
        for _ in range(hosts)
    ]

    async def live(number: int, task_status: TaskStatus[None]) -> None:
        def count(peer: str, message: bytes) -> None:
            heard[number] += 1

        async with nodes[number].run():
            await nodes[number].subscribe(TOPIC, lambda peer, message: GossipVerdict.ACCEPT, count)
            task_status.started()
            await anyio.sleep_forever()

    def total() -> int:
        return sum(node.traffic().sent_bytes for node in nodes)

    async with anyio.create_task_group() as tasks:
        for number in range(hosts):
            await tasks.start(live, number)
        for number, node in enumerate(nodes):
            for other in nodes[:number]:
                await node.connect(other.addresses()[0], deadline_seconds=30)
        await anyio.sleep(SETTLE_SECONDS)
        idle_began, before = anyio.current_time(), total()
        await anyio.sleep(SETTLE_SECONDS)
        idle_rate = (total() - before) / (anyio.current_time() - idle_began)
        began, before = anyio.current_time(), total()
        for number in range(messages):
            await nodes[number % hosts].publish(TOPIC, number.to_bytes(4) + bytes(size_bytes - 4))
            with anyio.fail_after(60):
                while sum(heard) < (number + 1) * (hosts - 1):  # noqa: ASYNC110  many tasks count
                    await anyio.sleep(0.01)
        await anyio.sleep(2.0)
        sent = total() - before - idle_rate * (anyio.current_time() - began)
        tasks.cancel_scope.cancel()
    return sent / messages / (hosts - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--messages", type=int, default=10)
    add_json_flag(parser)
    options = parser.parse_args()
    figures, large = [], mesh.LARGE_BYTES
    for size_bytes in (4_000, 64_000):
        for name, large_bytes in (("without", limits.ANNOUNCEMENT_BYTES + 1), ("with", large)):
            sent = anyio.run(sent_bytes, options.hosts, options.messages, size_bytes, large_bytes, backend="trio")
            name = f"sent for {size_bytes} bytes, {name} IDONTWANT"
            figures.append(Figure(name, sent / size_bytes, "copies", "lower"))
    report("declined_messages", figures, as_json=options.json)


if __name__ == "__main__":
    main()
