"""What the API costs a supervisor that sees many peers: its share of a core, with nobody looking and with a page open.

    python scripts/bench/api_peers.py [--json] [--peers 200] [--seconds 20]

The supervisor is the real one; the swarm process is a stand-in that tells of so many peers on the real socket, each
with a name, a model and five tasks, all of it different at every look, and the learner one that tells of a round
every second. A page is /peers, /swarm and /status once a second on one connection. CPU time is the kernel's account
of the supervisor's process; who asks is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import anyio
from report import Figure, add_json_flag, report
from simulated_node import SimulatedNode

from node.api.types import NodeStatus, PeersAnswer
from node.configuration import Config
from node.events import Event, encode_event
from node.home import Home, Lock, lock_home
from node.supervision.children import ChildSpec
from node.supervision.supervisor import Supervisor
from protocol.messages import Heartbeat, TaskSuccess
from swarm import api
from swarm.socket_server import serving

PATHS = ("/api/v1/peers", "/api/v1/swarm", "/api/v1/status")
TASKS = ("add", "sort", "count", "reverse", "spell")
MODELS = 12
SETTLE_SECONDS = 5.0
PAST_ROUNDS = 3000
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="with nobody looking, and as long with a page open")
    parser.add_argument("--role", choices=("swarm", "learner", "supervisor"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.role == "swarm":
        anyio.run(tell_of_peers, arguments.home, arguments.peers, backend="trio")
    elif arguments.role == "learner":
        threading.Thread(target=tell_of_rounds, daemon=True).start()
        sys.stdin.buffer.read()
    elif arguments.role == "supervisor":
        asyncio.run(supervise(Home(arguments.home), arguments.port, arguments.peers))
    else:
        report("api_peers", figures(arguments.peers, arguments.seconds), as_json=arguments.json)


def figures(peers: int, seconds: float) -> list[Figure]:
    """Starts everything, measures, ends everything."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="st-") as home:
        command = [sys.executable, __file__, "--role", "supervisor", "--home", home, "--port", str(port)]
        with subprocess.Popen([*command, "--peers", str(peers)], stdin=subprocess.PIPE) as supervisor:
            try:
                quiet, watched, latencies, size_bytes = measure(supervisor.pid, port, peers, seconds)
            finally:
                supervisor.terminate()
    about = f"supervisor of {peers} peers"
    return [
        Figure(f"{about}: share of a core, nobody looking", 100 * quiet, "%", "lower"),
        Figure(f"{about}: share of a core, a page open", 100 * watched, "%", "lower", "<= 5 %"),
        Figure("the page's part of it", 100 * (watched - quiet), "%", "lower"),
        *(
            Figure(f"{path}, slowest of {len(seen)}", 1e3 * max(seen), "ms", "lower", "<= 50 ms")
            for path, seen in latencies.items()
        ),
        Figure("bytes a second to the page", size_bytes / seconds, "B", "lower"),
    ]


def measure(pid: int, port: int, peers: int, seconds: float) -> tuple[float, float, dict[str, list[float]], int]:
    """Shares of a core without and with a page, seconds of each request, and bytes of all answers."""
    until_told(port, peers)
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


def until_told(port: int, peers: int) -> None:
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


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


class Silent:
    """Shows nothing."""

    def on_event(self, line: bytes, event: Event) -> None: ...

    def on_note(self, text: str) -> None: ...

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None: ...


async def supervise(home: Home, port: int, peers: int) -> None:
    lock = lock_home(home)
    assert isinstance(lock, Lock)
    swarm = (sys.executable, __file__, "--role", "swarm", "--home", str(home.path), "--peers", str(peers))
    learner = (sys.executable, __file__, "--role", "learner")
    supervisor = Supervisor(
        home,
        Config.model_validate({"name": "bench", "api": {"port": port}}),
        peer="12D3KooWbench",
        swarm=ChildSpec("swarm", swarm, b"{}", lock.descriptor),
        learner=ChildSpec("learner", learner, b"{}", lock.descriptor),
        observer=Silent(),
    )
    await supervisor.run()


def tell_of_rounds() -> None:
    """The learner's events, for ever: some hundred rounds at once, for the charts, then one a second."""
    node = SimulatedNode(time.time(), rounds=PAST_ROUNDS)
    ready, done = node.status().ready, node.status().round
    assert ready is not None
    tell(ready)
    number = 0
    while True:
        number += 1
        done = node.round_done(number, time.time() - max(0, PAST_ROUNDS - number), done)
        tell(done)
        tell(node.foreign_groups(done))
        if number > PAST_ROUNDS:
            time.sleep(1.0)


def tell(event: Event) -> None:
    sys.stdout.buffer.write(encode_event(event) + b"\n")
    sys.stdout.buffer.flush()


async def tell_of_peers(home: Path, peers: int) -> None:
    """The swarm process's socket, until standard input ends."""
    draws, looks = random.Random(1), 0

    async def answer(request: api.Request) -> api.Reply:
        nonlocal looks
        if isinstance(request, api.AskPeers):
            looks += 1
            return api.PeerList(tuple(made_up(number, looks, draws) for number in range(peers)))
        return api.SwarmStatus(
            "12D3KooWbench", "starling", "00" * 16, (), 1.0, peers, None, looks, looks, 0, {"heartbeat": looks}, {}
        )

    async with serving(home / "swarm.sock", answer):
        await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)


def made_up(number: int, look: int, draws: random.Random) -> api.PeerStatus:
    family = (number % MODELS).to_bytes(16)
    tasks = tuple(TaskSuccess(task, draws.random(), look * 8) for task in TASKS)
    beat = Heartbeat(
        f"node {number}", "starling 0.1.0", f"model {number % MODELS}", family, family, look, look, "learning",
        draws.random() * 1000, look, look, tasks,
    )  # fmt: skip
    peer = f"12D3KooW{number:044}"
    addresses = (f"/ip4/192.0.2.{number % 250}/tcp/4001/p2p/{peer}",)
    return api.PeerStatus(peer, True, addresses, draws.random(), beat, 1.0, look, look, 0, 0.9, None)


if __name__ == "__main__":
    main()
