"""Honest peers that fetch from one server whose uploads 300 identities hold, on the simulated network.

    python -m scripts.attacks.blobs_uploads [--sybils 300] [--rounds 3] [--json]

Six nodes; one of them serves, at 5 MB/s in all. Every attacker holds four streams of it, for every kind of attack: one
request a minute; reading 32 kB every two seconds of an answer without end; reading as fast as it comes; sending half
the length of a request. Each of the other five nodes fetches a new blob of 100 kB in each round, within ten seconds; to
the server they are strangers, as the attackers are. The figures are the arrivals over those in calm, the seconds that a
blob that arrived took at the median, and the share of the bytes that one attacker got.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from protocol.blob_id import blob_id
from protocol.errors import TransportError
from protocol.streams.blob_messages import BLOB_PROTOCOL, ChunkRange
from protocol.streams.framing import framed_message
from scripts.attacks.common.blobs_network import SYBILS, BlobNetwork, BlobNode, content
from scripts.attacks.common.members import in_virtual_time
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.api import Wanted
from swarm.host import Stream
from swarm.hosts.simulated.network import SimulatedHost

HONEST = 6
STREAMS = 4  # of each attacker
UPLOAD_BYTES_PER_SECOND = 5e6
SERVED_BYTES, WANTED_BYTES = 4 << 20, 100_000
FETCH_SECONDS, ROUND_SECONDS = 10.0, 12.0

Hold = Callable[[Stream, bytes], Awaitable[None]]  # what an attacker does on a stream, given a blob that is there


async def ask_once_a_minute(stream: Stream, blob: bytes) -> None:
    while True:
        await stream.send(framed_message([ChunkRange(bytes(32), 0, 1, False)]))
        await stream.receive(1000)
        await anyio.sleep(55.0)


async def read_slowly(stream: Stream, blob: bytes) -> None:
    await stream.send(framed_message([ChunkRange(blob, 0, 100, False)] * 100))
    while True:
        await stream.receive(32_768)
        await anyio.sleep(2.0)


async def read_fast(stream: Stream, blob: bytes) -> None:
    await stream.send(framed_message([ChunkRange(blob, 0, 100, False)] * 100))
    while await stream.receive(1 << 18):
        pass


async def begin_a_request(stream: Stream, blob: bytes) -> None:
    await stream.send(b"\0\0")
    await anyio.sleep_forever()


ATTACKS: dict[str, Hold] = {
    "one request a minute": ask_once_a_minute,
    "slow readers": read_slowly,
    "fast readers": read_fast,
    "begun requests": begin_a_request,
}


@dataclass
class Outcome:
    arrived: int = 0
    asked: int = 0
    seconds: list[float] = field(default_factory=list)
    most_of_one: float = 0.0


async def hold(host: SimulatedHost, server: BlobNode, attack: Hold, blob: bytes) -> None:
    await host.connect(server.host.addresses()[0], deadline_seconds=10.0)
    while True:
        with suppress(TransportError):
            stream = await host.open_stream(server.host.peer_id, BLOB_PROTOCOL, deadline_seconds=5.0)
            await attack(stream, blob)
        await anyio.sleep(0.5)


async def fetch(network: BlobNetwork, node: BlobNode, rounds: int, outcome: Outcome) -> None:
    server = network.nodes[0]
    for _ in range(rounds):
        blob, whole = content(network.random, WANTED_BYTES)
        server.store.put_verified(blob, whole)
        began_seconds = anyio.current_time()
        wanted = Wanted(blob, len(whole), (server.host.peer_id,))
        (came,) = await node.fetch([wanted], deadline_seconds=FETCH_SECONDS)
        outcome.asked += 1
        if came:
            outcome.arrived += 1
            outcome.seconds.append(anyio.current_time() - began_seconds)
        await anyio.sleep_until(began_seconds + ROUND_SECONDS)


def attack(kind: str | None, sybils: int, rounds: int, directory: Path) -> Outcome:
    """Plays the rounds beside attackers of one kind; in calm if there is none."""
    outcome = Outcome()

    async def story() -> None:
        network = BlobNetwork(directory, seed=2)
        async with (
            network.running(honest=HONEST, sybils=sybils if kind else 0, upload=UPLOAD_BYTES_PER_SECOND),
            anyio.create_task_group() as tasks,
        ):
            server = network.nodes[0]
            served = network.random.randbytes(SERVED_BYTES)
            server.store.put(served)
            for host in network.sybils:
                for _ in range(STREAMS):
                    tasks.start_soon(hold, host, server, ATTACKS[kind or ""], blob_id(served))
            await anyio.sleep(3.0)
            async with anyio.create_task_group() as fetches:
                for node in network.nodes[1:]:
                    fetches.start_soon(fetch, network, node, rounds, outcome)
            got = [host.traffic().received_bytes for host in network.sybils]
            outcome.most_of_one = max(got, default=0) / server.host.traffic().sent_bytes
            tasks.cancel_scope.cancel()

    in_virtual_time(story)
    return outcome


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--sybils", type=int, default=SYBILS)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as directory:
        calm = attack(None, 0, arguments.rounds, Path(directory))
    figures.append(Figure("in calm: median of a fetch", statistics.median(calm.seconds), "s", "lower"))
    for kind in ATTACKS:
        with tempfile.TemporaryDirectory() as directory:
            outcome = attack(kind, arguments.sybils, arguments.rounds, Path(directory))
        ratio = outcome.arrived / outcome.asked / (calm.arrived / calm.asked)
        median = statistics.median(outcome.seconds) if outcome.seconds else FETCH_SECONDS
        figures += [
            Figure(f"{kind}: honest fetches over calm", ratio, "ratio", "higher", "≥ 0.9"),
            Figure(f"{kind}: median of a fetch", median, "s", "lower"),
            Figure(f"{kind}: most that one identity got", outcome.most_of_one, "of the bytes", "lower"),
        ]
    report("blobs_uploads", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
