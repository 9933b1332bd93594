"""Runs releases of different days in one swarm, and says of each two of them what passes between them.

    python -m scripts.try_builds [--minutes 4] [--builds 1.0 1.1 1.2 now]

Builds: the last commit of protocol 1.0, of 1.1 and of 1.2, taken from this repository's history, and this tree. All run
with the libraries of this environment, with their defaults, on the loopback interface, one node each.

In the open each node dials that of this tree. The default tasks are part of an open swarm's id, so builds with other
ones are two swarms: then the newer node has to say why. In a private cluster, founded by the node of the first of
``--builds``, all have one model and one file of questions. Those that join later start from the weights of peers.

Each two of them must average and, those that came later, have caught up; they must learn from each other's groups or
count them by the reason why not. Ends with 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from scripts import REPOSITORY
from scripts.bench.common.processes import LISTEN, STARLING, quiet_environment

BUILDS: Final = {"1.0": "f7643419", "1.1": "f630e204", "1.2": "d7f062fd"}  # protocol: the last commit with it
NOW: Final = "now"
WORDS: Final = 3000
JOIN_EVERY_SECONDS: Final = 45.0  # the founder has a state to offer by then
START_SECONDS: Final = 120.0
POLL_SECONDS: Final = 1.0
AVERAGE_EVERY_ROUNDS: Final = 10  # of the default's 50: minutes have to do
ENDED_SECONDS: Final = 60.0


@dataclass
class Node:
    """One build's node. ``folder`` is its checkout."""

    build: str
    folder: Path
    home: Path
    process: subprocess.Popen[bytes] | None = None
    peer: str = ""

    def starling(self, *arguments: str) -> str:
        """Returns what this build's ``starling`` prints with these arguments."""
        command = [*STARLING, *arguments, "--home", str(self.home)]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"{self.build}: starling {' '.join(arguments[:2])} ends with {done.returncode}: {done.stderr}")
        return done.stdout

    def start(self, *flags: str) -> None:
        """Starts ``starling up``, and returns once it listens."""
        self.home.mkdir(parents=True, exist_ok=True)
        command = [*STARLING, "up", "--home", str(self.home), "--listen", LISTEN, "--json", *flags]
        with (self.home / "terminal").open("wb") as terminal:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=terminal,
                stderr=terminal,
            )  # fmt: skip
        limit = time.monotonic() + START_SECONDS
        while (status := self._status()) is None:
            if self.process.poll() is not None or time.monotonic() > limit:
                sys.exit(f"{self.build}: did not start: {(self.home / 'terminal').read_text()[-2000:]}")
            time.sleep(POLL_SECONDS)
        self.peer = status["swarm"]["peer"]

    def address(self) -> str:
        status = self._status()
        assert status is not None
        return str(status["swarm"]["addresses"][0])

    def peers(self) -> dict[str, dict[str, Any]]:
        return {peer["peer"]: peer for peer in json.loads(self.starling("peers", "--json"))["peers"]}

    def alone_because(self) -> str:
        status = self._status()
        return "" if status is None else status["swarm"]["alone_because"] or ""

    def caught_up(self) -> str:
        """Returns how its start from the weights of peers ended, or ""."""
        lines = (self.home / "metrics.jsonl").read_text().split("\n")[:-1]
        told = [event for event in map(json.loads, lines) if event["event"] == "catching_up"]
        return f"{told[-1]['stage']}: {told[-1]['because']}" if told else ""

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(ENDED_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def _status(self) -> dict[str, Any] | None:
        command = [*STARLING, "status", "--json", "--home", str(self.home)]
        asked = subprocess.run(command, cwd=self.folder, env=self._environment(), capture_output=True, check=False)
        status = json.loads(asked.stdout) if asked.returncode == 0 else None
        return status if status and status.get("swarm") and status["swarm"]["addresses"] else None

    def _environment(self) -> dict[str, str]:
        clean = {name: text for name, text in quiet_environment().items() if not name.startswith("STARLING_LEARNER")}
        return clean | {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}


def checked_out(build: str, into: Path) -> Path:
    """Returns the folder of a build: this tree, or its commit's files below ``into``."""
    if build == NOW:
        return REPOSITORY
    folder = into / build
    folder.mkdir()
    archive = subprocess.run(["git", "archive", BUILDS[build]], cwd=REPOSITORY, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def questions(path: Path) -> Path:
    """Writes questions that every build's ``wren`` answers at times: words to spell backwards."""
    draw = random.Random(0)
    words = {"".join(draw.choices(string.ascii_lowercase, k=draw.choice((3, 4)))) for _ in range(WORDS)}
    lines = [json.dumps({"question": f"reverse {word}=", "answer": word[::-1]}) for word in sorted(words)]
    path.write_text("\n".join(lines) + "\n")
    return path


def in_the_open(nodes: list[Node], seconds: float) -> list[str]:
    """Runs the nodes with their defaults; returns each two that neither share nor are told why."""
    *others, newest = nodes
    newest.start()
    for node in others:
        node.start("--peer", newest.address())
    time.sleep(seconds)
    said, missing = {node.build: node.alone_because() for node in nodes}, list[str]()
    for one, other in permutations(nodes, 2):
        met = one.peers().get(other.peer, {})
        because = said[one.build] if other.peer in said[one.build] else ""
        print(f"  {one.build} of {other.build}: {met.get('groups_used', 0)} groups used; {because}", flush=True)
        if one.build == NOW and not met.get("groups_used") and not because:
            missing.append(f"in the open, {NOW} neither learns from {other.build} nor says why")
    return missing


def in_a_cluster(nodes: list[Node], seconds: float, shared: list[str]) -> list[str]:
    """Runs the nodes in a cluster that the first one founds; returns what each two of them lack."""
    founder, *others = nodes
    founder.home.mkdir(parents=True)
    founder.starling("swarm", "create", "--private", "--name", "lab")
    founder.start(*shared)
    for node in others:
        time.sleep(JOIN_EVERY_SECONDS)
        invite = founder.starling("invite", "--for", f"build{node.build}").strip().splitlines()[-1]
        node.start("--join", invite, "--from-peers", *shared)
    time.sleep(seconds)
    missing = list[str]()
    for one, other in permutations(nodes, 2):
        met = one.peers().get(other.peer, {})
        used, averaged, outcomes = (met.get(what) for what in ("groups_used", "exchanges_committed", "outcomes"))
        because = "" if used else f" ({json.dumps(outcomes)})"
        print(
            f"  {one.build} of {other.build}: {used} groups used{because}, {averaged} exchanges of weights", flush=True
        )
        missing += [f"{one.build} learns nothing from {other.build}, and does not say why"] if not outcomes else []
        missing += [f"{one.build} does not average with {other.build}"] if not averaged else []
    for node in others:
        told = node.caught_up()
        print(f"  {node.build} started from weights of peers: {told}", flush=True)
        missing += [] if told.startswith("done") else [f"{node.build} did not catch up"]
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0, help="of the private cluster once all have joined")
    parser.add_argument("--builds", nargs="+", choices=[*BUILDS, NOW], default=[*BUILDS, NOW], help="the first founds")
    flags = parser.parse_args()
    builds = flags.builds
    with ExitStack() as stack:
        into = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folders = {build: checked_out(build, into) for build in builds}

        def nodes_of(kind: str, order: list[str]) -> list[Node]:
            nodes = [Node(build, folders[build], into / kind / build) for build in order]
            for node in nodes:
                stack.callback(node.end)
            return nodes

        print("in the open, with defaults:", flush=True)
        in_open = nodes_of("open", sorted(builds))
        missing = in_the_open(in_open, 60.0)
        for node in in_open:
            node.end()
        model = folders[builds[0]] / "node/models/wren"
        shared = [
            "--model", str(model), "--set", f"tasks.jsonl={questions(into / 'words.jsonl')}", "--set",
            "tasks.jsonl_max_new_tokens=8", "--set", "tasks.jsonl_reward=exact", "--set",
            f"averaging.every_rounds={AVERAGE_EVERY_ROUNDS}",
        ]  # fmt: skip
        print(f"in a private cluster that {builds[0]} founds:", flush=True)
        missing += in_a_cluster(nodes_of("cluster", builds), 60.0 * flags.minutes, shared)
    print(f"load {os.getloadavg()[0]:.0f}")
    print("\n".join(missing) or "all pairs share, average and catch up, or say why not")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
