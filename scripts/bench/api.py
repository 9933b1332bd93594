"""The cost of requests to a node: latency of /api/v1/status at 50 requests a second, and the learner's loss of speed.

    python -m scripts.bench.api [--json] [--rounds 240]

Two whole nodes with the built-in model, one after the other, alone on loopback, with one seed, one identity and a
learning rate near 0: so their rounds are the same work, which is checked by their rewards. One is asked in every other
round, the other in those between. So each round is compared with itself, and neither a difference between the two runs
nor one between rounds counts. The client runs on the same cores and is counted too.
"""

from __future__ import annotations

import http.client
import itertools
import json
import math
import shutil
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from protocol.identity import NodeKey
from scripts.bench.common.processes import free_port, started_node
from scripts.bench.common.reporting import Figure, figures_parser, report

REQUESTS_PER_SECOND = 50
WARM_ROUNDS = 20  # which do not count


class Lived(NamedTuple):
    round_seconds: list[float]
    rewards: list[float]  # mean of each round
    latencies_seconds: list[float]  # of each request


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=240, help=f"of each node; the first {WARM_ROUNDS} do not count")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        key = Path(folder, "identity.key")
        NodeKey.load_or_create(key)
        nodes = [lived(key, arguments.rounds, parity) for parity in (0, 1)]
    latencies = sorted(seconds for node in nodes for seconds in node.latencies_seconds)
    slowest = latencies[int(0.99 * len(latencies))]
    figures = [
        Figure("/api/v1/status at 50 requests a second, p99", slowest * 1e3, "ms", "lower", "<= 50 ms"),
        Figure("the same, median", statistics.median(latencies) * 1e3, "ms", "lower"),
        Figure("the learner's rounds, longer by", 100 * longer_by(*nodes), "%", "lower", "<= 5 %"),
    ]
    report("api", figures, as_json=arguments.json)


def is_asked(index: int, parity: int) -> bool:
    """Whether the node of this parity is sent requests during the round of this index."""
    return index % 2 == parity


def longer_by(first: Lived, second: Lived) -> float:
    """Returns the share by which a round lasts longer with requests."""
    if first.rewards != second.rewards:
        raise SystemExit("the two nodes' rounds were not the same work: their rewards differ")
    ratios: dict[bool, list[float]] = {True: [], False: []}  # logarithms of the first's to the second's seconds
    for index, (one, other) in enumerate(zip(first.round_seconds, second.round_seconds, strict=True)):
        if index >= WARM_ROUNDS:
            ratios[is_asked(index, 0)].append(math.log(one / other))
    return math.expm1((statistics.median(ratios[True]) - statistics.median(ratios[False])) / 2)


def lived(key: Path, rounds: int, parity: int) -> Lived:
    """Runs a node with the identity ``key`` for ``rounds`` rounds, with requests during half of them."""
    port = free_port()
    begins, rewards = [], []
    asking, over = threading.Event(), threading.Event()
    settings = (f"api.port={port}", f"rounds={rounds + 1}", "seed=0", "learner.learning_rate=1e-12")
    with ExitStack() as stack:
        client = stack.enter_context(ThreadPoolExecutor(1)).submit(asked, port, asking, over)
        stack.callback(asking.set)  # so that it ends
        stack.callback(over.set)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
        shutil.copy(key, home)
        node = stack.enter_context(started_node(home, *(part for one in settings for part in ("--set", one))))
        assert node.stdin is not None and node.stdout is not None
        for line in node.stdout:
            event = json.loads(line)
            if event["event"] != "round":
                continue
            begins.append(time.perf_counter())  # of the next round
            rewards.append(event["reward"])
            if is_asked(len(begins) - 1, parity) and len(begins) <= rounds:
                asking.set()
            else:
                asking.clear()
        node.stdin.close()
    if len(begins) != rounds + 1:
        raise SystemExit(f"the node ended after {len(begins)} rounds")
    return Lived([end - begin for begin, end in itertools.pairwise(begins)], rewards[1:], client.result())


def asked(port: int, asking: threading.Event, over: threading.Event) -> list[float]:
    """Returns, for each request, the seconds from its due time to its answer, so waiting for an earlier one counts."""
    seconds: list[float] = []
    while asking.wait() and not over.is_set():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
        due = time.perf_counter()
        while asking.is_set() and not over.is_set():
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.request("GET", "/api/v1/status")
            answer = connection.getresponse()
            json.loads(answer.read())
            if answer.status != http.client.OK:
                raise SystemExit(f"/api/v1/status answered {answer.status}")
            seconds.append(time.perf_counter() - due)
            due += 1 / REQUESTS_PER_SECOND
        connection.close()
    return seconds


if __name__ == "__main__":
    main()
