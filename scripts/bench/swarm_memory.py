"""Memory of the swarm process: eight ``python -m swarm.service`` that talk to each other for ``--minutes``.

Every process heartbeats, shares groups, and fetches and judges those of others, through its socket as a learner would,
as often as ``--round-seconds`` says. Resident memory of each is sampled every few seconds. The figures are the largest
value of any process, and how fast memory grows after the first fifth of the time: the steepest process's least-squares
line. "Flat" is read as less than 1 MB a minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Figure, add_json_flag, report
from sharing_traffic import SMALL, group

from protocol.messages import Heartbeat, TaskSuccess
from swarm import api
from swarm.client import SwarmClient

PROCESSES = 8
WARM_SHARE = 0.2  # of the time, in which caches fill and the mesh forms


class Node:
    """One swarm process, and what its learner would do."""

    def __init__(self, number: int, directory: Path, peers: list[str]) -> None:
        home = directory / str(number)
        checkout = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "swarm.service"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=checkout)
        settings = {
            "home": str(home),
            "swarm_name": "bench",
            "swarm_id": "00" * 16,
            "listen": "/ip4/127.0.0.1/tcp/0",
            "peers": peers,
            "lan_discovery": False,
            "store_bytes": 64 << 20,
            "log_level": "error",
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(settings).encode() + b"\n")
        self.process.stdin.flush()
        self.addresses: list[str] = json.loads(self.process.stdout.readline())["addresses"]
        self.client = SwarmClient(home / "swarm.sock", timeout_seconds=60.0)
        self.samples: list[tuple[float, float]] = []  # (seconds, bytes)
        self._cursor = 0
        self._random = Random(number)
        self._name = f"node-{number}"

    def work(self, round_: int) -> int:
        """One round; returns the groups used."""
        tasks = tuple(TaskSuccess(f"task_{i}", 0.5, 100) for i in range(6))
        self.client.beat(
            Heartbeat(self._name, "bench", "wren", bytes(16), bytes(16), round_, round_, "learning", 100.0, 4, 4, tasks)
        )
        self.client.share([group(self._random, SMALL.characters, SMALL.completions) for _ in range(SMALL.shared)])
        seen = self.client.seen_groups(self._cursor, 1000)
        if not seen:
            return 0
        self._cursor = seen[-1].cursor
        chosen = self._random.sample(seen, min(SMALL.used, len(seen)))
        wanted = [api.Wanted(s.advert.blob, s.advert.size, (s.peer,)) for s in chosen]
        fetched = self.client.fetch(wanted, deadline_seconds=30.0)
        for s, outcome in zip(chosen, fetched, strict=True):
            if outcome.path is not None:
                self.client.judge(s.peer, s.advert.blob, api.Judgement.USED)
        return sum(outcome.path is not None for outcome in fetched)

    def sample(self, seconds: float) -> None:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        kilobytes = int(status.partition("VmRSS:")[2].split()[0])
        self.samples.append((seconds, kilobytes * 1024.0))

    def growth(self) -> float:
        """Bytes a second after warming up."""
        seconds, resident = np.array(self.samples).T
        warm = seconds >= WARM_SHARE * seconds[-1]
        return float(np.polyfit(seconds[warm], resident[warm], 1)[0])

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.communicate()


def measure(minutes: float, round_seconds: float, directory: Path) -> list[Figure]:
    nodes: list[Node] = []
    used = rounds = 0
    try:
        for number in range(PROCESSES):
            nodes.append(Node(number, directory, nodes[0].addresses if nodes else []))
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < minutes * 60.0:
            rounds += 1
            for node in nodes:
                used += node.work(rounds)
                node.sample(elapsed)
            time.sleep(max(0.0, began + rounds * round_seconds - time.monotonic()))
        connected = min(node.client.status().connected_peers for node in nodes)
    finally:
        for node in nodes:
            node.close()
    largest = max(resident for node in nodes for _, resident in node.samples)
    growth = max(node.growth() for node in nodes)
    return [
        Figure("largest resident memory of a swarm process", largest / 1e6, "MB", "lower", "≤ 200"),
        Figure("steepest growth after warming up", growth * 60.0 / 1e6, "MB/minute", "lower", "< 1: flat"),
        Figure("length", (time.monotonic() - began) / 60.0, "minutes", "higher"),
        Figure("fewest peers connected at the end", connected, "peers", "higher", f"{PROCESSES - 1}"),
        Figure("groups used by each node in a round", used / rounds / PROCESSES, "groups", "higher"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--round-seconds", type=float, default=5.0)
    add_json_flag(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(arguments.minutes, arguments.round_seconds, Path(directory))
    report("swarm_memory", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
