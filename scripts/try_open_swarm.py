"""Runs the public swarm of docs/open-swarm.md: two doors, a signed list, and nodes that join by its name. Linux.

    python -m scripts.try_open_swarm [--nodes N]

Every machine is a network namespace with its own address on one bridge (``private_cluster_machines.py``). The doors are
two of ``starling relay``. The first signs a list with both, which a web server there serves. Each node is started by
``starling up --swarm lark --list URL``, and knows nothing else. Supervisors, swarm processes, verbs and sockets are the
real ones; learners are stand-ins without torch (``scripts.chaos.stub_learner``) that share a small group a round, and
fetch and check groups of others.

Once every node has fetched a group, or time is over, the first door and the web server are ended. One more node then
joins by the list that it had read before, through the second door.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from scripts import REPOSITORY
from scripts.chaos.stub_learner import ROUND_SECONDS_VARIABLE
from scripts.private_cluster_machines import inside_namespaces, network

SWARM: Final = "lark"
ROUND_SECONDS: Final = 20.0
HEARTBEAT_SECONDS: Final = 10.0  # twice the default: all nodes share a few cores
POLL_SECONDS: Final = 1.0
DOOR_SECONDS: Final = 120.0  # for a relay to listen
STARLING: Final = (sys.executable, "-m", "scripts.chaos.starling_under_conditions")
MB: Final = 1e6


class Machine:
    """A namespace with its data directory, and at most one program that runs there."""

    def __init__(self, number: int) -> None:
        self.namespace, self.address = f"machine{number}", f"10.78.0.{number}"
        self.home = Path("/run/homes") / str(number)
        self.began = 0.0  # Unix time of the start
        self._program: subprocess.Popen[bytes] | None = None

    def start(self, *command: str) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.began = time.time()
        with (self.home / "terminal").open("ab") as log:
            self._program = subprocess.Popen(
                self._inside(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(self.home),
                cwd=REPOSITORY,
            )  # fmt: skip

    def run(self, *arguments: str) -> str:
        """Returns what ``starling`` with these arguments prints."""
        done = self._run(*arguments)
        if done.returncode != 0:
            sys.exit(f"starling {' '.join(arguments)}: exit code {done.returncode}: {done.stderr[-1000:]}")
        return done.stdout

    def status(self) -> dict[str, Any] | None:
        """Returns what ``starling status`` says; None where nothing answers in time."""
        asked = self._run("status", "--json")
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def address_once_listening(self) -> str:
        """Returns the first address of the relay that was started here."""
        deadline = time.monotonic() + DOOR_SECONDS
        while (status := self.status()) is None:
            self.check_running()
            if time.monotonic() > deadline:
                sys.exit(f"no relay after {DOOR_SECONDS:g} s: {(self.home / 'terminal').read_text()[-1000:]}")
            time.sleep(POLL_SECONDS)
        return str(status["addresses"][0])

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._inside([*STARLING, *arguments, "--home", str(self.home)]), capture_output=True, text=True,
            env=_environment(self.home), cwd=REPOSITORY, check=False,
        )  # fmt: skip

    def end(self) -> None:
        if self._program is not None:
            self._program.terminate()
            self._program.wait()
            self._program = None

    def check_running(self) -> None:
        if self._program is not None and self._program.poll() is not None:
            said = (self.home / "terminal").read_text(errors="replace")
            sys.exit(f"{self.namespace}: ended with {self._program.returncode}: {said[-2000:]}")

    def events(self) -> list[dict[str, Any]]:
        """Returns the whole events in the node's record."""
        try:
            lines = (self.home / "metrics.jsonl").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *command]


class Joining:
    """What one node's record says of its joining; seconds count from its start."""

    def __init__(self, machine: Machine) -> None:
        events = machine.events()
        self.peer_seconds = _first(events, machine, lambda e: e["event"] == "peers" and e["came_total"] > 0)
        self.fetched_seconds = _first(
            events, machine, lambda e: e["event"] == "round" and e["foreign_groups_used_total"] > 0
        )
        heard = [event["present"] for event in events if event["event"] == "peers"]
        used = [event["foreign_groups_used_total"] for event in events if event["event"] == "round"]
        self.peers, self.fetched = (heard or [0])[-1], (used or [0])[-1]


def _first(events: list[dict[str, Any]], machine: Machine, holds: Callable[[dict[str, Any]], bool]) -> float | None:
    return next((event["time_seconds"] - machine.began for event in events if holds(event)), None)


def open_doors(doors: Sequence[Machine]) -> list[str]:
    """Starts relays, each later one with the first's address, and returns their addresses once all listen."""
    known: list[str] = []
    for door in doors:
        peers = [part for address in known[:1] for part in ("--peer", address)]
        listen = f"/ip4/{door.address}/tcp/4001"
        door.start(
            *STARLING, "relay", "--home", str(door.home), "--listen", listen, "--set", f"swarm.name={SWARM}", *peers
        )
        known.append(door.address_once_listening())
    return known


def publish(first: Machine, addresses: Sequence[str]) -> str:
    """Signs the list with these doors at the first one, and serves it there; returns its URL."""
    given = [part for address in addresses for part in ("--door", address)]
    folder = first.home / "web"
    folder.mkdir()
    print(first.run("swarm", "publish", str(folder / "swarms.list"), *given), end="")
    return f"http://{first.address}:8000/swarms.list"


def report(joined: Sequence[Joining], doors: Sequence[Machine]) -> None:
    for what, seconds in (
        ("heard of a first peer", [each.peer_seconds for each in joined]),
        ("fetched and checked a first group", [each.fetched_seconds for each in joined]),
    ):
        done = sorted(each for each in seconds if each is not None)
        times = f"; seconds: {done[0]:.0f} to {done[-1]:.0f}, median {median(done):.0f}" if done else ""
        print(f"{what}: {len(done)} of {len(joined)}{times}")
    print(f"peers present to a node, doors included: {min(e.peers for e in joined)} to {max(e.peers for e in joined)}")
    print(f"groups fetched by all: {sum(each.fetched for each in joined)}")
    for number, door in enumerate(doors, 1):
        status = door.status()
        if status is None:
            print(f"door {number}: {_resident_mb(door):.0f} MB resident; it did not answer in time")
            continue
        print(
            f"door {number}: {status['connected_peers']} peers connected, {_resident_mb(door):.0f} MB resident, "
            f"{status['sent_bytes'] / status['uptime_seconds'] / 1000:.1f} kB/s sent, "
            f"{status['received_bytes'] / status['uptime_seconds'] / 1000:.1f} kB/s received"
        )


def _resident_mb(machine: Machine) -> float:
    pid = (machine.home / "supervisor.lock").read_text().strip()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def wait_for(machines: Sequence[Machine], seconds: float) -> list[Joining]:
    """Returns once every node has fetched a group, or after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        for machine in machines:
            machine.check_running()
        joined = [Joining(machine) for machine in machines]
        if all(each.fetched for each in joined) or time.monotonic() > deadline:
            return joined
        time.sleep(POLL_SECONDS)


def try_swarm(nodes: Sequence[Machine], doors: Sequence[Machine], *, every_seconds: float, seconds: float) -> int:
    web = Machine(1)
    began = time.monotonic()
    url = publish(doors[0], open_doors(doors))
    served = str(doors[0].home / "web")
    web.start(sys.executable, "-m", "http.server", "8000", "--directory", served, "--bind", web.address)
    print(f"two doors and the list after {time.monotonic() - began:.0f} s", flush=True)
    *first, last = nodes
    last.run("swarms", "--list", url)
    for node in first:
        node.start(*_up(node), "--list", url)
        time.sleep(every_seconds)
    print(f"{len(first)} nodes started after {time.monotonic() - began:.0f} s", flush=True)
    joined = wait_for(first, seconds)
    time.sleep(2 * ROUND_SECONDS)  # in which all have news of all
    report([Joining(machine) for machine in first], doors)
    web.end()
    doors[0].end()
    print("the first door and the web server have ended", flush=True)
    last.start(*_up(last))
    (late,) = wait_for([last], seconds)
    after = "no group" if late.fetched_seconds is None else f"first group after {late.fetched_seconds:.0f} s"
    print(f"one more node, by its kept list and the second door: {late.peers} peers present, {after}")
    print(f"load {os.getloadavg()[0]:.0f}; {time.monotonic() - began:.0f} s in all")
    return 0 if all(each.fetched for each in (*joined, late)) else 1


def _up(node: Machine) -> list[str]:
    listen = f"/ip4/{node.address}/tcp/4001"
    return [*STARLING, "up", "--home", str(node.home), "--swarm", SWARM, "--listen", listen]


def _environment(home: Path) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("STARLING_")}
    return clean | {
        "HOME": str(home),
        "STARLING_SWARM__LAN_DISCOVERY": "false",  # the list is to be all that they know
        "STARLING_SWARM__HEARTBEAT_SECONDS": f"{HEARTBEAT_SECONDS:g}",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),  # children leave out the working directory
        "OMP_NUM_THREADS": "1",
        ROUND_SECONDS_VARIABLE: f"{ROUND_SECONDS:g}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=30, help="that join while both doors are open (default 30)")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="between two starts (default 2)")
    parser.add_argument("--seconds", type=float, default=300.0, help="to wait for all to fetch a group (default 300)")
    flags = parser.parse_args()
    inside_namespaces("scripts.try_open_swarm")
    network(flags.nodes + 3)
    doors, nodes = [Machine(1), Machine(2)], [Machine(number) for number in range(3, flags.nodes + 4)]
    try:
        code = try_swarm(nodes, doors, every_seconds=flags.every, seconds=flags.seconds)
    finally:
        for machine in (*nodes, *doors):
            machine.end()
    sys.exit(code)


if __name__ == "__main__":
    main()
