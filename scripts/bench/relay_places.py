"""A relay at which many nodes that nobody can dial have a place: memory, descriptors, places lost. Linux, with nft.

    python -m scripts.bench.relay_places [--peers 200] [--minutes 10] [--json]

The relay is the process that ``starling relay`` becomes. The peers are participants of its swarm on libp2p hosts,
``PER_PROCESS`` in a process, each with a network of its own for address, since a relay gives one network few places. A
packet filter drops what would open a connection to a peer, as a home's router does where no hole can be punched. So
each finds out from the relay that nobody can dial it, takes a place, and connects to others through the relay. They
send heartbeats, one in ``HEARTBEAT_SECONDS`` (a node's default is 5, and 12 in a swarm of 200), and nothing else. They
share a few cores, and leave those to the relay where it wants one.

A place is lost where a peer had one and has none. Growth is that of the least-squares line over the second half; at an
equal number of circuits, that of the plane over time and circuits, whose other slope is the memory of one circuit. All
of it runs in namespaces of its own, and keeps its folders in memory there, so that nothing remains, however it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
import msgspec
import numpy as np

from node.relay.starting import RELAY_ENVIRONMENT
from protocol.identity import NodeKey
from scripts.bench.common.process_usage import cpu_seconds, process_descriptors, process_memory
from scripts.bench.common.processes import child, line_of, tell
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.private_cluster_machines import inside_namespaces
from swarm.hosts.choosing import host_for
from swarm.hosts.libp2p.relaying.relay_book import RESERVATIONS
from swarm.hosts.unwrapping import unwrapped
from swarm.participant import Participant
from swarm.peers.reachability import REMEDY
from swarm.peers.reaching import Relays
from swarm.settings import ServiceSettings

SWARM: Final = bytes(range(16))
RELAY: Final = "198.18.0.1"
PORT: Final = 4001
PER_PROCESS: Final = 25
HEARTBEAT_SECONDS: Final = 60.0
STARTS_SECONDS: Final = 8.0  # between two peers of a process, so that about one a second comes
LOOK_SECONDS: Final = 1.0  # between two looks of a peer at its place
TELL_SECONDS: Final = 5.0
JOINING_SECONDS: Final = 900.0  # at most, for all to have a place
DROPPED: Final = f"""
table inet homes {{
  chain input {{
    type filter hook input priority 0
    ip daddr != {RELAY} tcp flags & (syn | ack) == syn drop
  }}
}}
"""


def address_of(number: int) -> str:
    """Returns the address of a peer, from 1 to 511: the only one of its /24, of a block that is for measurements. Hosts
    take it for public, and so dial from where they listen."""
    return f"198.{18 + number // 256}.{number % 256}.1"


def settings_of(home: Path, ip: str, *peers: str) -> ServiceSettings:
    return ServiceSettings(
        str(home), "bench", SWARM.hex(), listen=f"/ip4/{ip}/tcp/{PORT}", peers=peers, lan_discovery=False,
        heartbeat_seconds=HEARTBEAT_SECONDS,
    )  # fmt: skip


class Peers:
    """Some of the peers, in one process."""

    def __init__(self) -> None:
        self.held: Counter[int] = Counter()  # 1: has a place, by number
        self.counts: Counter[str] = Counter()
        self.participants: dict[int, Participant] = {}

    async def run(self, numbers: list[int], relay: str, home: Path) -> None:
        """Runs until cancelled; prints what they have every few seconds."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell_regularly)
            for number in numbers:
                tasks.start_soon(self._run_one, number, relay, home / str(number))
                await anyio.sleep(STARTS_SECONDS)

    async def _tell_regularly(self) -> None:
        while True:
            all_of_them = self.participants.values()
            fewest = min((len(p.host.peers()) for p in all_of_them), default=0)
            without = [
                f"peer {number}, {len(p.host.peers())} connections, refused {dict(p.reaching.failures)}: "
                f"{p.reaching.status().in_words.partition(REMEDY)[0]}"
                for number, p in self.participants.items()
                if not self.held[number]
            ]
            told = {"held": self.held.total(), "fewest": fewest, "without": without}
            print(json.dumps(told | self.counts))
            sys.stdout.flush()
            await anyio.sleep(TELL_SECONDS)

    async def _run_one(self, number: int, relay: str, home: Path) -> None:
        await anyio.Path(home).mkdir()
        settings, key = settings_of(home, address_of(number), relay), NodeKey.generate()
        participant = Participant(
            host_for(settings, key, None),
            key,
            settings,
            wall_clock=time.time,
            random=Random(number),
            emit=lambda event, fields: None,
            membership=None,
            relays=Relays.NEVER,
        )
        self.participants[number] = participant
        await participant.run(partial(self._watch, number, participant))

    async def _watch(self, number: int, participant: Participant) -> None:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            has = int(bool(participant.host.relaying().relays))
            self.counts["lost"] += has < self.held[number]
            self.held[number] = has


async def work() -> None:
    task = json.loads(sys.stdin.readline())
    with unwrapped(), tempfile.TemporaryDirectory(prefix="starling-places-") as home:
        await Peers().run(task["numbers"], task["relay"], Path(home))


@dataclass
class Told:
    """What a process that runs said last."""

    last: dict[str, Any] = field(default_factory=dict)

    def follow(self, process: subprocess.Popen[str]) -> None:
        def read() -> None:
            while line := next_line():
                self.last = {**self.last, **json.loads(line)}

        def next_line() -> str:
            try:
                return line_of(process)
            except ValueError:  # its output was closed as it was ended
                return ""

        threading.Thread(target=read, daemon=True).start()


@dataclass(frozen=True)
class Sample:
    seconds: float
    memory_mb: float
    descriptors: int
    idle_descriptors: int  # those that are no open connection
    held: int
    lost: int
    circuits: int  # connections through the relay, as it says itself every ten seconds at most
    processor_seconds: float


class Measurement:
    def __init__(self, relay: subprocess.Popen[str], events: Told, workers: list[Told]) -> None:
        self._relay, self._events, self._workers = relay, events, workers
        self._began = time.monotonic()

    def sample(self) -> Sample:
        def total(name: str) -> int:
            return sum(worker.last.get(name, 0) for worker in self._workers)

        descriptors = process_descriptors(self._relay.pid)
        return Sample(
            time.monotonic() - self._began, process_memory(self._relay.pid).resident / 1e6,
            descriptors.open, descriptors.open - descriptors.connections, total("held"), total("lost"),
            self._events.last.get("circuits", 0), cpu_seconds(self._relay.pid),
        )  # fmt: skip

    def until_all_hold(self, peers: int) -> Sample:
        while (now := self.sample()).held < peers:
            print(f"{now.seconds:.0f} s: {now.held} of {peers} have a place; {now.memory_mb:.0f} MB", file=sys.stderr)
            if now.seconds > JOINING_SECONDS:
                without = [each for worker in self._workers for each in worker.last.get("without", ())]
                sys.exit("\n".join((f"only {now.held} of {peers} have a place after {now.seconds:.0f} s", *without)))
            time.sleep(TELL_SECONDS)
        return now

    def over(self, minutes: float) -> list[Sample]:
        until, samples = time.monotonic() + 60 * minutes, [self.sample()]
        while time.monotonic() < until:
            time.sleep(TELL_SECONDS)
            samples.append(self.sample())
            if len(samples) % 12 == 0:
                print(samples[-1], file=sys.stderr)
        return samples


def growth(samples: list[Sample], name: str) -> float:
    """Returns by how much a value grows a minute in the second half."""
    half = samples[len(samples) // 2 :]
    seconds, values = [each.seconds for each in half], [float(getattr(each, name)) for each in half]
    return float(np.polyfit(seconds, values, 1)[0]) * 60


def growth_at_equal_circuits(samples: list[Sample]) -> tuple[float, float]:
    """Returns by how much the memory grows a minute in the second half where the number of circuits stays, in MB, and
    with each circuit, in kB. Memory that an allocator keeps when circuits end counts as growth over time."""
    half = samples[len(samples) // 2 :]
    rows = np.array([[each.seconds / 60, each.circuits, each.memory_mb] for each in half])
    rows -= rows.mean(0)
    by_minute, by_circuit = np.linalg.lstsq(rows[:, :2], rows[:, 2], rcond=None)[0]
    return float(by_minute), float(by_circuit) * 1000


def prepare(peers: int) -> None:
    """Gives the namespaces their addresses, their filter, and a folder in memory for what is temporary."""
    subprocess.run(["mount", "-t", "tmpfs", "none", tempfile.gettempdir()], check=True)
    addresses = [f"address add {ip}/32 dev lo" for ip in (RELAY, *map(address_of, range(1, peers + 1)))]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(["link set lo up", *addresses]), text=True, check=True)
    subprocess.run(["nft", "-f", "-"], input=DROPPED, text=True, check=True)


def measured(peers: int, minutes: float) -> list[Figure]:
    prepare(peers)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="starling-relay-")))
        relay = stack.enter_context(child("node.relay.relay_process", "--json", **RELAY_ENVIRONMENT))
        tell(relay, **msgspec.to_builtins(settings_of(home, RELAY)))
        ready = json.loads(line_of(relay))
        events = Told(ready)
        events.follow(relay)
        time.sleep(TELL_SECONDS)
        alone = Measurement(relay, events, []).sample()
        workers = []
        for first in range(1, peers + 1, PER_PROCESS):
            worker = stack.enter_context(child("scripts.bench.relay_places", "--worker"))
            numbers = list(range(first, min(first + PER_PROCESS, peers + 1)))
            tell(worker, numbers=numbers, relay=ready["addresses"][0])
            workers.append(Told())
            workers[-1].follow(worker)
        measurement = Measurement(relay, events, workers)
        held = measurement.until_all_hold(peers)
        samples = measurement.over(minutes)
        relayed_bytes = events.last.get("relayed_bytes", 0)
        fewest = min(worker.last["fewest"] for worker in workers)
    last = samples[-1]
    used = (last.processor_seconds - samples[0].processor_seconds) / (last.seconds - samples[0].seconds)
    most_memory = max(each.memory_mb for each in samples)
    growth_mb, circuit_kb = growth_at_equal_circuits(samples)
    return [
        Figure("places lost", last.lost, "", "lower", "0"),
        Figure("fewest places held at a time", min(each.held for each in samples), "", "higher", f">= {peers}"),
        Figure("memory of the relay, most", most_memory, "MB", "lower", "<= 100"),
        Figure("memory alone", alone.memory_mb, "MB", "lower"),
        Figure("memory once all had a place", held.memory_mb, "MB", "lower"),
        Figure("growth of memory, second half", growth(samples, "memory_mb"), "MB/minute", "lower", "<= 0.1"),
        Figure("growth of memory at an equal number of circuits", growth_mb, "MB/minute", "lower"),
        Figure("memory with each circuit", circuit_kb, "kB", "lower"),
        Figure("circuits in the middle", samples[len(samples) // 2].circuits, "", "higher"),
        Figure("circuits, most", max(each.circuits for each in samples), "", "higher"),
        Figure("circuits at the end", last.circuits, "", "higher"),
        Figure("growth of descriptors, second half", growth(samples, "descriptors"), "a minute", "lower", "<= 0.1"),
        Figure("growth of those that are no open connection", growth(samples, "idle_descriptors"), "a minute", "lower"),
        Figure("descriptors, most", max(each.descriptors for each in samples), "", "lower"),
        Figure("of these no open connection, most", max(each.idle_descriptors for each in samples), "", "lower"),
        Figure("until all had a place", held.seconds, "s", "lower"),
        Figure("fewest connections of a peer, at the end", fewest, "", "higher"),
        Figure("relayed", relayed_bytes / 1e6, "MB", "lower"),
        Figure("cores that the relay takes", used, "", "lower"),
        Figure("load at the end", os.getloadavg()[0], "processes", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--peers", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        os.nice(10)
        anyio.run(work, backend="trio")
        return
    if not 0 < options.peers <= RESERVATIONS:
        parser.error(f"a relay has 1 to {RESERVATIONS} places")
    inside_namespaces("scripts.bench.relay_places")
    figures = measured(options.peers, options.minutes)
    report(f"a relay with {options.peers} places", figures, as_json=options.json)


if __name__ == "__main__":
    main()
