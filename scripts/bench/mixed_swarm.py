"""Announcements in a mixed swarm: half of its hosts are py-libp2p, half are the Go daemon.

    python -m scripts.bench.mixed_swarm [--peers 16] [--minutes 10] [--busy 0] [--cut-every 0] [--json]

Every host is a process of its own, with the peering of a node: it keeps the addresses of ``NEIGHBOURS`` hosts that are
drawn, and dials again what it lost. It publishes ``MESSAGE_BYTES`` every ``EVERY_SECONDS``. The figure is the part of
all (message, other host) pairs that arrived. ``--busy`` processes want a core meanwhile, which is how a Python host is
late; they and the hosts have the lowest priority. With ``--cut-every`` each host drops one
of its connections, drawn by lot, every so many seconds. The Go daemon needs the extra ``go``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Any, cast

import anyio
import anyio.to_thread

from protocol.identity import NodeKey
from scripts.bench.common.processes import busy_processes, child, line_of, tell
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.host import GossipVerdict, Host, PeerId
from swarm.hosts.choosing import host_for
from swarm.peers.peering import Peering
from swarm.settings import ServiceSettings

SWARM = bytes(range(16))
TOPIC = "bench"
KINDS = ("py", "go")
NEIGHBOURS, MESSAGE_BYTES, EVERY_SECONDS = 4, 1200, 5.0
NAME_BYTES, NUMBER_BYTES = 52, 8
SETTLING_SECONDS = 15.0  # for the meshes to form, and for the last messages to arrive


@asynccontextmanager
async def running(kind: str) -> AsyncIterator[Host]:
    with tempfile.TemporaryDirectory(prefix="starling-mixed-") as home:
        settings = ServiceSettings(
            home, "bench", SWARM.hex(), listen="/ip4/127.0.0.1/tcp/0", lan_discovery=False, host=cast(Any, kind)
        )
        host = host_for(settings, NodeKey.generate(), None)
        async with host.run():
            yield host


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


async def next_line() -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(await anyio.to_thread.run_sync(sys.stdin.readline) or "{}"))


async def gossip(kind: str) -> None:
    """One host: publishes, and says at the end how many messages of each publisher it heard, and what it lost."""
    heard: Counter[str] = Counter()
    seen: set[bytes] = set()
    counts: Counter[str] = Counter()

    def on_message(_: PeerId, message: bytes) -> None:
        key = message[: NAME_BYTES + NUMBER_BYTES]
        if key in seen:
            counts["repeated"] += 1
        else:
            heard[message[:NAME_BYTES].decode()] += 1
        seen.add(key)

    async with running(kind) as host, anyio.create_task_group() as tasks:
        await host.subscribe(TOPIC, lambda peer, message: GossipVerdict.ACCEPT, on_message)
        say(address=host.addresses()[0], peer=host.peer_id)
        task = await next_line()
        random = Random(host.peer_id)
        peering = Peering(host, SWARM, configured=task["addresses"], remembered=None, random=random, on_lan=False)
        tasks.start_soon(peering.run)
        tasks.start_soon(watch_losses, host, counts)
        await anyio.sleep(SETTLING_SECONDS)
        if task["cut_every"]:
            tasks.start_soon(cut, host, task["cut_every"], random)
        sent = 0
        until_seconds = anyio.current_time() + task["seconds"]
        await anyio.sleep(random.random() * EVERY_SECONDS)
        while anyio.current_time() < until_seconds:
            content = host.peer_id.encode() + sent.to_bytes(NUMBER_BYTES, "big")
            await host.publish(TOPIC, content + random.randbytes(MESSAGE_BYTES - len(content)))
            sent += 1
            await anyio.sleep(EVERY_SECONDS)
        say(sent=sent)
        await next_line()
        say(heard=heard, counts=counts, peers=len(host.peers()))
        tasks.cancel_scope.cancel()


async def watch_losses(host: Host, counts: Counter[str]) -> None:
    connected: set[PeerId] = set()
    while True:
        now = set(host.peers())
        counts["lost"] += len(connected - now)
        connected = now
        await anyio.sleep(0.25)


async def cut(host: Host, every_seconds: float, random: Random) -> None:
    while True:
        await anyio.sleep(random.uniform(0.5, 1.5) * every_seconds)
        if peers := sorted(host.peers()):
            await host.disconnect(random.choice(peers))


def answer(worker: Popen[str]) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(line_of(worker)))


def measured(peers: int, minutes: float, cut_every_seconds: float) -> list[Figure]:
    random = Random(7)
    kinds = [KINDS[n % 2] for n in range(peers)]
    with ExitStack() as stack:
        workers = [stack.enter_context(child("scripts.bench.mixed_swarm", "--worker", kind)) for kind in kinds]
        started = [answer(worker) for worker in workers]
        for number, worker in enumerate(workers):
            # One of those before it, so that the swarm is connected; the others are drawn of all.
            others = [n for n in range(peers) if n != number]
            chosen = {random.randrange(number)} if number else set()
            chosen |= set(random.sample(others, min(len(others), NEIGHBOURS - len(chosen))))
            addresses = [started[n]["address"] for n in sorted(chosen)]
            tell(worker, addresses=addresses, seconds=60 * minutes, cut_every=cut_every_seconds)
        sent = [answer(worker)["sent"] for worker in workers]
        time.sleep(SETTLING_SECONDS)
        load = Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "nan"
        for worker in workers:
            tell(worker, end=True)
        ends = [answer(worker) for worker in workers]
    arrived, due = Counter[str](), Counter[str]()
    for number, end in enumerate(ends):
        for other, each in enumerate(started):
            if other != number:
                pair = f"{kinds[other]} to {kinds[number]}"
                arrived[pair] += end["heard"].get(each["peer"], 0)
                due[pair] += sent[other]
    counts = sum((Counter(end["counts"]) for end in ends), Counter[str]())
    return [
        Figure("delivered", 100 * arrived.total() / due.total(), "%", "higher", ">= 99.9"),
        Figure("due", due.total(), "deliveries", "higher"),
        *(Figure(f"delivered, {pair}", 100 * arrived[pair] / due[pair], "%", "higher") for pair in sorted(due)),
        Figure("delivered twice", counts["repeated"], "deliveries", "lower"),
        Figure("connections that ended, counted at both ends", counts["lost"], "", "lower"),
        Figure("fewest connections of a host at the end", min(end["peers"] for end in ends), "", "higher"),
        Figure("load at the end", float(load), "processes", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--busy", type=int, default=0, help="processes that want a core meanwhile")
    parser.add_argument(
        "--cut-every", type=float, default=0.0, help="seconds between two connections that a host drops"
    )
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        anyio.run(partial(gossip, options.worker), backend="trio")
        return
    if options.busy:
        os.nice(19)
    with busy_processes(options.busy):
        figures = measured(options.peers, options.minutes, options.cut_every)
    report(f"{options.peers} hosts, half of them go", figures, as_json=options.json)


if __name__ == "__main__":
    main()
