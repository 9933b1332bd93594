"""A supervisor that sees many peers, for ``dashboard.py``: ``python -m scripts.bench.common.crowded_supervisor``.

The supervisor is the real one. A stand-in for the swarm process reports the peers on the real socket, each with a name,
a model and five tasks, all of it different in every answer; a stand-in for the learner reports a round every second.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import random
import subprocess
import sys
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
from scripts.bench.common.simulated_node import SimulatedNode
from swarm import api
from swarm.socket_server import serving

COMMAND = (sys.executable, "-m", "scripts.bench.common.crowded_supervisor")
TASKS = ("add", "sort", "count", "reverse", "spell")
MODELS = 12
PAST_ROUNDS = 3000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("swarm", "learner", "supervisor"))
    parser.add_argument("--peers", type=int)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    if arguments.role == "swarm":
        anyio.run(report_peers, arguments.home, arguments.peers, backend="trio")
    elif arguments.role == "learner":
        threading.Thread(target=report_rounds, daemon=True).start()
        sys.stdin.buffer.read()
    else:
        asyncio.run(supervise(Home(arguments.home), arguments.port, arguments.peers))


def started_supervisor(home: str, port: int, peers: int) -> subprocess.Popen[bytes]:
    """Starts the supervisor of ``peers`` peers, with its API on ``port``."""
    command = [*COMMAND, "supervisor", "--home", home, "--port", str(port), "--peers", str(peers)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=REPOSITORY)


def wait_until_known(port: int, peers: int) -> None:
    """Returns once the supervisor knows all peers."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
        try:
            connection.request("GET", "/api/v1/peers")
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
    swarm = (*COMMAND, "swarm", "--home", str(home.path), "--peers", str(peers))
    learner = (*COMMAND, "learner")
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
