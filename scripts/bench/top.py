"""The start of starling top: seconds from its command to its first painted screen, in a pseudo-terminal.

    python -m scripts.bench.top [--json] [--starts 5] [--peers 200]

The node is simulated and served by the real API, in its own process. A screen is painted when it shows the node's round
and the line of keys. The same is measured for the Peers view, with ``--peers`` peers, from the press of its key.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.api.event_feed import EventFeed
from node.api.server import served
from scripts import REPOSITORY
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.simulated_node import SimulatedNode

COMMAND = (sys.executable, "-m", "node.cli.main", "top", "--home")
PAINTED = (b"round 401: generating", b"quit")
PEERS_PAINTED = (b"reputation", b"wren")
LIMIT_SECONDS = 60.0
QUIT = b"q"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5, help="one after another")
    parser.add_argument("--peers", type=int, default=200)
    parser.add_argument("--serve", metavar="DIRECTORY", help=argparse.SUPPRESS)
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(Path(arguments.serve), arguments.peers))
        return
    with tempfile.TemporaryDirectory(prefix="st-") as home, serving(home, arguments.peers):
        starts = [start(home) for _ in range(arguments.starts)]
    painted = [painted_seconds for painted_seconds, _ in starts]
    about = "starling top: command to first painted screen"
    figures = [
        Figure(f"{about}, median of {len(starts)}", statistics.median(painted), "s", "lower", "<= 1 s"),
        Figure(f"{about}, slowest", max(painted), "s", "lower"),
        Figure(f"key 2 to {arguments.peers} peers painted", statistics.median(s for _, s in starts), "s", "lower"),
    ]
    report("top", figures, as_json=arguments.json)


async def serve(home: Path, peers: int) -> None:
    """Serves the simulated node until standard input ends."""
    async with served(SimulatedNode(time.time(), peers=peers), EventFeed(), home / "supervisor.sock"):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def serving(home: str, peers: int) -> Iterator[None]:
    command = [sys.executable, "-m", "scripts.bench.top", "--serve", home, "--peers", str(peers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as node:
        assert node.stdin is not None and node.stdout is not None
        if node.stdout.readline() != b"ready\n":
            raise SystemExit(f"the simulated node ended with exit code {node.wait()}")
        try:
            yield
        finally:
            node.stdin.close()


def start(home: str) -> tuple[float, float]:
    """Returns the seconds to the first painted screen, and from the key of the Peers view to its first screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    began = time.perf_counter()
    environment = os.environ | {"TERM": "xterm-256color"}
    with subprocess.Popen([*COMMAND, home], stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as top:
        os.close(theirs)
        try:
            read_until(ours, PAINTED)
            painted_seconds = time.perf_counter() - began
            began = time.perf_counter()
            os.write(ours, b"2")
            read_until(ours, PEERS_PAINTED)
            peers_seconds = time.perf_counter() - began
            os.write(ours, QUIT)
            drain(ours, top)
        finally:
            top.kill()
            os.close(ours)
    if top.returncode != 0:
        raise SystemExit(f"starling top ended with exit code {top.returncode}")
    return painted_seconds, peers_seconds


def read_until(terminal: int, texts: tuple[bytes, ...]) -> None:
    seen = b""
    until_seconds = time.monotonic() + LIMIT_SECONDS
    while not all(text in seen for text in texts):
        if not select.select([terminal], [], [], max(0.0, until_seconds - time.monotonic()))[0]:
            raise SystemExit(f"not painted in {LIMIT_SECONDS:g} s; the terminal got: {seen[-2000:]!r}")
        seen += os.read(terminal, 65536)


def drain(terminal: int, top: subprocess.Popen[bytes]) -> None:
    """Reads what ``top`` writes while it ends, until it has ended."""
    until_seconds = time.monotonic() + LIMIT_SECONDS
    while top.poll() is None and time.monotonic() < until_seconds:
        if select.select([terminal], [], [], 0.02)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:  # it closed its side
                break
    top.wait(LIMIT_SECONDS)


if __name__ == "__main__":
    main()
