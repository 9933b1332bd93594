"""The two hosts, each alone and together: the rate of a stream, and announcements in a mixed swarm.

    python -m scripts.bench.hosts [--megabytes 256] [--rounds 5] [--link-megabits 50] [--peers 16] [--minutes 3]

Every host is a process of its own; ``py`` is ``Libp2pHost`` and ``go`` is ``GoHost``, which needs the extra ``go``.
Rates: one process sends ``--megabytes`` on one stream of a protocol as plain as can be, another receives and discards
it, ``--rounds`` times on one connection; the figure is the median, beside the best. Of an end that is ``py``, the rate
per second of its processor is printed too, which other programs on the machine hardly change. Over the link (namespaces
shaped by ``tc tbf``, root alone) the figure is the payload's rate over the link's. Swarm: ``--peers`` hosts, half of
each kind, each connected to ``NEIGHBOURS`` that are drawn, publish ``MESSAGE_BYTES`` every ``EVERY_SECONDS``; the
figure is the part of all (message, other host) pairs that arrived.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import IO, Any, cast

import anyio
import anyio.to_thread

from protocol.errors import TransportError
from protocol.identity import NodeKey
from scripts import REPOSITORY
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.slow_network import NoSlowNetworkError, slow_network
from swarm.host import GossipVerdict, Host, PeerId, Stream
from swarm.hosts.choosing import host_for
from swarm.settings import ServiceSettings

PROTOCOL, TOPIC = "/bench/stream/1", "bench"
PIECE_BYTES = 1 << 18
NEIGHBOURS, MESSAGE_BYTES, EVERY_SECONDS = 4, 1200, 5.0
SETTLING_SECONDS = 5.0  # for the meshes to form, and for the last messages to arrive
BARS = {("go", "go"): ">= 200", ("go", "py"): ">= 120", ("py", "go"): ">= 120"}


@asynccontextmanager
async def running(kind: str, ip: str) -> AsyncIterator[Host]:
    with tempfile.TemporaryDirectory(prefix="starling-hosts-") as home:
        settings = ServiceSettings(
            home, "bench", "0" * 32, listen=f"/ip4/{ip}/tcp/0", lan_discovery=False, host=cast(Any, kind)
        )
        host = host_for(settings, NodeKey.generate(), None)
        async with host.run():
            yield host


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


async def next_line() -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(await anyio.to_thread.run_sync(sys.stdin.readline) or "{}"))


# The processes


async def serve(kind: str, ip: str) -> None:
    """Sends as many bytes as a stream's first eight say; at the end says how many seconds of processor each took."""
    worked_seconds = []

    async def send(stream: Stream) -> None:
        size = int.from_bytes(await exactly(stream, 8), "big")
        piece = bytes(PIECE_BYTES)
        began_seconds = time.process_time()
        for start in range(0, size, PIECE_BYTES):
            await stream.send(piece[: min(PIECE_BYTES, size - start)])
        worked_seconds.append(time.process_time() - began_seconds)

    async with running(kind, ip) as host:
        host.handle(PROTOCOL, send)
        say(address=host.addresses()[0])
        await next_line()
        say(worked_seconds=worked_seconds)


async def fetch(kind: str, ip: str) -> None:
    """Says how many seconds each fetch took, and how many of the processor here."""
    async with running(kind, ip) as host:
        say(ready=True)
        task = await next_line()
        peer = await host.connect(task["address"], deadline_seconds=30)
        size, seconds, worked_seconds = task["bytes"], [], []
        for _ in range(task["rounds"]):
            stream = await host.open_stream(peer, PROTOCOL, deadline_seconds=30)
            began_seconds, began_work_seconds = time.perf_counter(), time.process_time()
            await stream.send(int(size).to_bytes(8, "big"))
            left = size
            while left:
                piece = await stream.receive(min(left, PIECE_BYTES))
                assert piece, f"the stream ended {left} bytes too early"
                left -= len(piece)
            seconds.append(time.perf_counter() - began_seconds)
            worked_seconds.append(time.process_time() - began_work_seconds)
            await stream.finish(linger_seconds=5)
        say(seconds=seconds, worked_seconds=worked_seconds)


async def exactly(stream: Stream, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = await stream.receive(size - len(content))
        if not piece:
            break
        content += piece
    return content


async def gossip(kind: str, ip: str) -> None:
    """Publishes, and says at the end how many messages of each publisher it heard."""
    heard: Counter[str] = Counter()
    repeated = Counter[str]()
    seen: set[bytes] = set()

    def on_message(_: PeerId, message: bytes) -> None:
        publisher = message[:52].decode()
        (repeated if message[:60] in seen else heard)[publisher] += 1
        seen.add(message[:60])

    async with running(kind, ip) as host:
        await host.subscribe(TOPIC, lambda peer, message: GossipVerdict.ACCEPT, on_message)
        say(address=host.addresses()[0], peer=host.peer_id)
        task = await next_line()
        for address in task["addresses"]:
            try:
                await host.connect(address, deadline_seconds=30)
            except TransportError as error:
                print(f"{kind}: {error}", file=sys.stderr)
        await anyio.sleep(SETTLING_SECONDS)
        random, sent = Random(host.peer_id), 0
        until_seconds = anyio.current_time() + task["seconds"]
        await anyio.sleep(random.random() * EVERY_SECONDS)
        while anyio.current_time() < until_seconds:
            content = host.peer_id.encode() + sent.to_bytes(8, "big")
            await host.publish(TOPIC, content + random.randbytes(MESSAGE_BYTES - len(content)))
            sent += 1
            await anyio.sleep(EVERY_SECONDS)
        say(sent=sent)
        await next_line()
        say(heard=heard, repeated=repeated.total(), peers=len(host.peers()))


# The measurements


class Worker:
    """One process of this program."""

    def __init__(self, role: str, kind: str, ip: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "scripts.bench.hosts", "--worker", role, kind, ip]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        cast(IO[str], self.process.stdin).close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        cast(IO[str], self.process.stdout).close()

    def ask(self, **fields: object) -> None:
        stdin = cast(IO[str], self.process.stdin)
        stdin.write(json.dumps(fields) + "\n")
        stdin.flush()

    def answer(self) -> dict[str, Any]:
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended without an answer")
        return cast(dict[str, Any], json.loads(line))


def rates(server: Worker, client: Worker, megabytes: int, rounds: int) -> tuple[list[float], list[float]]:
    """Returns MB/s of each fetch, and MB per second of the receiver's processor."""
    address = str(server.answer()["address"])
    client.answer()
    client.ask(address=address, bytes=megabytes * 10**6, rounds=rounds)
    told = client.answer()
    by_clock, by_work = ([megabytes / each for each in told[kind]] for kind in ("seconds", "worked_seconds"))
    return by_clock, by_work


def on_loopback(sender: str, receiver: str, megabytes: int, rounds: int) -> list[Figure]:
    with Worker("serve", sender) as server, Worker("fetch", receiver) as client:
        found, received = rates(server, client, megabytes, rounds)
        server.ask(end=True)
        worked = [megabytes / seconds for seconds in server.answer()["worked_seconds"]]
    name = f"{sender} to {receiver}"
    bar = BARS.get((sender, receiver))
    figures = [
        Figure(f"stream, {name}, median", statistics.median(found), "MB/s", "higher", bar),
        Figure(f"stream, {name}, best", max(found), "MB/s", "higher"),
    ]
    for end, kind, by_work in (("sender", sender, worked), ("receiver", receiver, received)):
        if kind == "py":  # the Go daemon works in another process
            rate = statistics.median(by_work)
            figures.append(Figure(f"stream, {name}, {end}", rate, "MB per s of processor", "higher"))
    return figures


def over_link(sender: str, receiver: str, megabits: float) -> Figure:
    megabytes = max(1, int(megabits * 10 / 8))  # ten seconds
    with slow_network(2, megabits) as (one, other), ExitStack() as stack:
        server = stack.enter_context(Worker("serve", sender, one.address, one.command([])))
        client = stack.enter_context(Worker("fetch", receiver, other.address, other.command([])))
        found, _ = rates(server, client, megabytes, 1)
    return Figure(
        f"{megabits:g} Mbit/s link, {sender} to {receiver}", found[0] * 8 / megabits, "of it", "higher", ">= .95"
    )


def mixed_swarm(peers: int, minutes: float) -> list[Figure]:
    random = Random(7)
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("gossip", "go" if n % 2 else "py")) for n in range(peers)]
        started = [worker.answer() for worker in workers]
        addresses = [each["address"] for each in started]
        for number, worker in enumerate(workers):
            # One of those before it, so that the swarm is connected; the others are drawn of all.
            others = [n for n in range(peers) if n != number]
            chosen = {random.randrange(number)} if number else set()
            chosen |= set(random.sample(others, min(len(others), NEIGHBOURS - len(chosen))))
            worker.ask(addresses=[addresses[n] for n in chosen], seconds=minutes * 60)
        sent = [worker.answer()["sent"] for worker in workers]
        time.sleep(SETTLING_SECONDS)
        for worker in workers:
            worker.ask(end=True)
        ends = [worker.answer() for worker in workers]
    arrived = Counter[str]()
    for number, end in enumerate(ends):
        for other, each in enumerate(started):
            if other != number:
                arrived[f"{['py', 'go'][other % 2]} to {['py', 'go'][number % 2]}"] += end["heard"].get(each["peer"], 0)
    expected = sum(sent) * (peers - 1)
    figures = [
        Figure(f"{peers} hosts, delivered", 100 * arrived.total() / expected, "%", "higher", ">= 99.9"),
        Figure(f"{peers} hosts, expected", expected, "deliveries", "higher"),
        Figure(f"{peers} hosts, fewest connections at the end", min(end["peers"] for end in ends), "", "higher"),
        Figure(f"{peers} hosts, delivered twice", sum(end["repeated"] for end in ends), "deliveries", "lower"),
    ]
    kinds = Counter[str]()
    for other in range(peers):
        for number in range(peers):
            if other != number:
                kinds[f"{['py', 'go'][other % 2]} to {['py', 'go'][number % 2]}"] += sent[other]
    return figures + [
        Figure(f"delivered, {kind}", 100 * arrived[kind] / count, "%", "higher")
        for kind, count in sorted(kinds.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link-megabits", type=float, default=50.0, help="0: no link")
    parser.add_argument("--peers", type=int, default=16, help="0: no swarm")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    add_json_flag(parser)
    given = parser.parse_args()
    if given.worker:
        role, kind, ip = given.worker
        anyio.run(partial({"serve": serve, "fetch": fetch, "gossip": gossip}[role], kind, ip), backend="trio")
        return
    pairs = [("go", "go"), ("go", "py"), ("py", "go"), ("py", "py")]
    figures: list[Figure] = []
    if given.rounds:
        for pair in pairs:
            figures += on_loopback(*pair, given.megabytes, given.rounds)
    if given.link_megabits:
        try:
            figures += [over_link(*pair, given.link_megabits) for pair in pairs]
        except NoSlowNetworkError as error:
            print(f"the link was not measured: {error}", file=sys.stderr)
    if given.peers:
        figures += mixed_swarm(given.peers, given.minutes)
    report("hosts", figures, as_json=given.json)


if __name__ == "__main__":
    main()
