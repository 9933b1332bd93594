"""Memory of the swarm process: eight ``python -m swarm.swarm_process`` that exchange groups for ``--minutes``.

    python -m scripts.bench.swarm_memory [--minutes 10] [--json]

Every process sends heartbeats, shares groups, and fetches and judges those of others, through its socket as a learner
would, every ``--round-seconds``. Resident memory of each is sampled every round. The figures are the largest value of
any process, and the growth of memory after the first fifth of the time: the steepest least-squares line of a process.
"Flat" means less than 1 MB a minute.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np

from protocol.messages import Heartbeat, TaskSuccess
from scripts.bench.common.process_usage import process_memory
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.swarm_processes import SwarmProcess, group, swarm_of
from swarm import api

PROCESSES = 8
GROUPS = 4  # that each process shares, and uses, in a round
WARM_UP_SHARE = 0.2  # of the time, in which caches fill and the mesh forms


class SimulatedLearner:
    """Makes the requests that the learner of one swarm process would make."""

    def __init__(self, number: int, process: SwarmProcess) -> None:
        self._process = process
        self._random = Random(number)
        self._name = f"node-{number}"
        self._cursor = 0
        self.samples: list[tuple[float, float]] = []  # (seconds, resident bytes)

    def work(self, number: int) -> int:
        """One round; returns the groups used."""
        client = self._process.client
        tasks = tuple(TaskSuccess(f"task_{i}", 0.5, 100) for i in range(6))
        none = bytes(16)
        client.beat(Heartbeat(self._name, "bench", "wren", none, none, number, number, "learning", 100.0, 4, 4, tasks))
        client.share([group(self._random, 256, 8, number) for _ in range(GROUPS)])
        seen = client.seen_groups(self._cursor, 1000)
        if not seen:
            return 0
        self._cursor = seen[-1].cursor
        chosen = self._random.sample(seen, min(GROUPS, len(seen)))
        wanted = [api.Wanted(s.advert.blob, s.advert.size, (s.peer,)) for s in chosen]
        fetched = client.fetch(wanted, deadline_seconds=30.0)
        for s, outcome in zip(chosen, fetched, strict=True):
            if outcome.is_here:
                client.judge(s.peer, s.advert.blob, api.Judgement.USED)
        return sum(outcome.is_here for outcome in fetched)

    def sample(self, seconds: float) -> None:
        self.samples.append((seconds, float(process_memory(self._process.process.pid).resident)))

    def growth(self) -> float:
        """Returns the growth after the warm-up, bytes a second."""
        seconds, resident = np.array(self.samples).T
        warm = seconds >= WARM_UP_SHARE * seconds[-1]
        return float(np.polyfit(seconds[warm], resident[warm], 1)[0])


def measure(minutes: float, round_seconds: float, directory: Path) -> list[Figure]:
    used = rounds = 0
    with swarm_of(PROCESSES, directory) as swarm:
        learners = [SimulatedLearner(number, process) for number, process in enumerate(swarm)]
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < minutes * 60.0:
            rounds += 1
            for learner in learners:
                used += learner.work(rounds)
                learner.sample(elapsed)
            time.sleep(max(0.0, began + rounds * round_seconds - time.monotonic()))
        connected = min(process.client.status().connected_peers for process in swarm)
    largest = max(resident for learner in learners for _, resident in learner.samples)
    growth = max(learner.growth() for learner in learners)
    return [
        Figure("largest resident memory of a swarm process", largest / 1e6, "MB", "lower", "≤ 200"),
        Figure("steepest growth after warming up", growth * 60.0 / 1e6, "MB/minute", "lower", "< 1: flat"),
        Figure("length", elapsed / 60.0, "minutes", "higher"),
        Figure("fewest peers connected at the end", connected, "peers", "higher", f"{PROCESSES - 1}"),
        Figure("groups used by each node in a round", used / rounds / PROCESSES, "groups", "higher"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--round-seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(arguments.minutes, arguments.round_seconds, Path(directory))
    report("swarm_memory", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
