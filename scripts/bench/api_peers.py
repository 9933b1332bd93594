"""The API's cost to a supervisor that sees many peers: its share of a core, without a client and with a page open.

    python -m scripts.bench.api_peers [--json] [--peers 200] [--seconds 20]

The supervisor is the real one. A stand-in for the swarm process reports this many peers on the real socket, each with a
name, a model and five tasks, all of it different in every answer; a stand-in for the learner reports a round every
second. A page is /peers, /swarm and /status once a second on one connection. CPU time is the kernel's account of the
supervisor's process; the client is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import anyio

from node.api.types import NodeStatus, PeersAnswer
from node.configuration import Config
from node.events import Event, encode_event
from node.home import Home, Lock, lock_home
from node.supervision.children import ChildSpec
from node.supervision.supervisor import Supervisor
from protocol.messages import Heartbeat, TaskSuccess
from scripts import REPOSITORY
from scripts.bench.common.processor_time import cpu_seconds
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.simulated_node import SimulatedNode
from swarm import api
from swarm.socket_server import serving

COMMAND = (sys.executable, "-m", "scripts.bench.api_peers")
PATHS = ("/api/v1/peers", "/api/v1/swarm", "/api/v1/status")
TASKS = ("add", "sort", "count", "reverse", "spell")
MODELS = 12
SETTLE_SECONDS = 5.0
PAST_ROUNDS = 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=200)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="without a client, and as long again with a page open"
    )
    parser.add_argument("--role", choices=("swarm", "learner", "supervisor"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.role == "swarm":
        anyio.run(report_peers, arguments.home, arguments.peers, backend="trio")
    elif arguments.role == "learner":
        threading.Thread(target=report_rounds, daemon=True).start()
        sys.stdin.buffer.read()
    elif arguments.role == "supervisor":
        asyncio.run(supervise(Home(arguments.home), arguments.port, arguments.peers))
    else:
        report("api_peers", figures(arguments.peers, arguments.seconds), as_json=arguments.json)


def figures(peers: int, seconds: float) -> list[Figure]:
    """Starts all processes, measures, and ends them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="st-") as home, started_supervisor(home, port, peers) as supervisor:
        try:
            quiet, watched, latencies, size_bytes = measure(supervisor.pid, port, peers, seconds)
        finally:
            supervisor.terminate()
    about = f"supervisor of {peers} peers"
    return [
        Figure(f"{about}: share of a core, no client", 100 * quiet, "%", "lower"),
        Figure(f"{about}: share of a core, a page open", 100 * watched, "%", "lower", "<= 5 %"),
        Figure("the page's part of it", 100 * (watched - quiet), "%", "lower"),
        *(
            Figure(f"{path}, slowest of {len(seen)}", 1e3 * max(seen), "ms", "lower", "<= 50 ms")
            for path, seen in latencies.items()
        ),
        Figure("bytes a second to the page", size_bytes / seconds, "B", "lower"),
    ]


def started_supervisor(home: str, port: int, peers: int) -> subprocess.Popen[bytes]:
    """Starts this module as the supervisor of ``peers`` peers, with its API on ``port``."""
    command = [*COMMAND, "--role", "supervisor", "--home", home, "--port", str(port), "--peers", str(peers)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=REPOSITORY)


def measure(pid: int, port: int, peers: int, seconds: float) -> tuple[float, float, dict[str, list[float]], int]:
    """Returns shares of a core without and with a page, seconds of each request, and bytes of all answers."""
    wait_until_known(port, peers)
    time.sleep(SETTLE_SECONDS)
    before = cpu_seconds(pid)
    time.sleep(seconds)
    quiet = (cpu_seconds(pid) - before) / seconds
    before, began = cpu_seconds(pid), time.perf_counter()
    latencies: dict[str, list[float]] = {path: [] for path in PATHS}
    size_bytes = 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    for second in range(1, round(seconds) + 1):
        for path in PATHS:
            asked = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            size_bytes += len(answer.read())
            latencies[path].append(time.perf_counter() - asked)
            if answer.status != http.client.OK:
                raise SystemExit(f"{path} answered {answer.status}")
        time.sleep(max(0.0, began + second - time.perf_counter()))
    elapsed_seconds = time.perf_counter() - began
    connection.close()
    return quiet, (cpu_seconds(pid) - before) / elapsed_seconds, latencies, size_bytes


def wait_until_known(port: int, peers: int) -> None:
    """Returns once the supervisor knows all peers."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
        try:
            connection.request("GET", PATHS[0])
            if connection.getresponse().read().count(b'"round_trip_seconds"') == peers:
                return
        except ConnectionRefusedError:  # not up yet
            pass
        finally:
            connection.close()
        time.sleep(0.2)


class Silent:
    """Shows nothing."""

    def on_event(self, line: bytes, event: Event) -> None: ...

    def on_note(self, text: str) -> None: ...

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None: ...


async def supervise(home: Home, port: int, peers: int) -> None:
    lock = lock_home(home)
    assert isinstance(lock, Lock)
    swarm = (*COMMAND, "--role", "swarm", "--home", str(home.path), "--peers", str(peers))
    learner = (*COMMAND, "--role", "learner")
    supervisor = Supervisor(
        home,
        Config.model_validate({"name": "bench", "api": {"port": port}}),
        peer="12D3KooWbench",
        swarm=ChildSpec("swarm", swarm, b"{}", lock.descriptor),
        learner=ChildSpec("learner", learner, b"{}", lock.descriptor),
        observer=Silent(),
    )
    await supervisor.run()


def report_rounds() -> None:
    """Writes a learner's events and never returns: ``PAST_ROUNDS`` at once, for the charts, then one a second."""
    node = SimulatedNode(time.time(), rounds=PAST_ROUNDS)
    ready, done = node.status().ready, node.status().round
    assert ready is not None
    write(ready)
    number = 0
    while True:
        number += 1
        done = node.round_done(number, time.time() - max(0, PAST_ROUNDS - number), done)
        write(done)
        write(node.foreign_groups(done))
        if number > PAST_ROUNDS:
            time.sleep(1.0)


def write(event: Event) -> None:
    sys.stdout.buffer.write(encode_event(event) + b"\n")
    sys.stdout.buffer.flush()


async def report_peers(home: Path, peers: int) -> None:
    """Serves the swarm process's socket until standard input ends."""
    draws, requests = random.Random(1), 0

    async def answer(request: api.Request) -> api.Reply:
        nonlocal requests
        if isinstance(request, api.AskPeers):
            requests += 1
            return api.PeerList(tuple(simulated_peer(number, requests, draws) for number in range(peers)))
        return api.SwarmStatus(
            "12D3KooWbench",
            "starling",
            "00" * 16,
            (),
            1.0,
            peers,
            None,
            requests,
            requests,
            0,
            {"heartbeat": requests},
            {},
        )

    async with serving(home / "swarm.sock", answer):
        await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)


def simulated_peer(number: int, request: int, draws: random.Random) -> api.PeerStatus:
    family = (number % MODELS).to_bytes(16)
    tasks = tuple(TaskSuccess(task, draws.random(), request * 8) for task in TASKS)
    beat = Heartbeat(
        f"node {number}", "starling 0.1.0", f"model {number % MODELS}", family, family, request, request, "learning",
        draws.random() * 1000, request, request, tasks,
    )  # fmt: skip
    peer = f"12D3KooW{number:044}"
    addresses = (f"/ip4/192.0.2.{number % 250}/tcp/4001/p2p/{peer}",)
    return api.PeerStatus(peer, True, addresses, draws.random(), beat, 1.0, request, request, 0, 0.9, None)


if __name__ == "__main__":
    main()
