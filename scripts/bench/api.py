"""The cost of requests to a node: latency of /api/v1/status at 50 requests a second, and the learner's loss of speed.

    python -m scripts.bench.api [--json] [--seconds 60]

One whole node with the built-in model, alone on loopback. Windows with and without requests take turns, so that both
see the same machine, and change places each time, since steps become longer as it learns. Steps are the learner's own
round events. The client runs on the same cores and is counted too.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from scripts.bench.common.processes import free_port, started_node
from scripts.bench.common.reporting import Figure, figures_parser, report

REQUESTS_PER_SECOND = 50
WINDOW_SECONDS = 5.0
WARM_ROUNDS = 20


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of requests; as many seconds again pass without requests"
    )
    arguments = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="st-") as home:
        latencies, quiet, asked = measure(home, port, windows=max(1, round(arguments.seconds / WINDOW_SECONDS)))
    slowest = sorted(latencies)[int(0.99 * len(latencies))]
    figures = [
        Figure("/api/v1/status at 50 requests a second, p99", slowest * 1e3, "ms", "lower", "<= 50 ms"),
        Figure("the same, median", sorted(latencies)[len(latencies) // 2] * 1e3, "ms", "lower"),
        Figure("learner's steps a second, fewer by", 100 * (1 - asked / quiet), "%", "lower", "<= 5 %"),
    ]
    report("api", figures, as_json=arguments.json)


def measure(home: str, port: int, *, windows: int) -> tuple[list[float], float, float]:
    """Returns the seconds of each request, and the learner's steps a second without and with requests."""
    steps: list[float] = []  # when each was reported
    latencies: list[float] = []
    counts = {False: 0, True: 0}
    lasted = {False: 0.0, True: 0.0}
    with started_node(Path(home), "--set", f"api.port={port}") as node:
        assert node.stdin is not None and node.stdout is not None
        warm = threading.Event()

        def listen(lines: IO[bytes]) -> None:
            for line in lines:
                if json.loads(line)["event"] == "round":
                    steps.append(time.perf_counter())
                    if len(steps) >= WARM_ROUNDS:
                        warm.set()
            warm.set()

        listener = threading.Thread(target=listen, args=(node.stdout,))
        listener.start()
        warm.wait()
        for window in range(2 * windows):
            asking = window % 4 in (1, 2)
            before, began = len(steps), time.perf_counter()
            if asking:
                latencies += ask(port, began + WINDOW_SECONDS)
            else:
                time.sleep(WINDOW_SECONDS)
            counts[asking] += len(steps) - before
            lasted[asking] += time.perf_counter() - began
        node.stdin.close()
        listener.join()
    return latencies, counts[False] / lasted[False], counts[True] / lasted[True]


def ask(port: int, until_seconds: float) -> list[float]:
    """Returns, for each request, the seconds from its due time to its answer, so waiting for an earlier one counts."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    seconds = []
    due = time.perf_counter()
    while due < until_seconds:
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
