"""Closes the terminals of nodes, as people do, and counts the rounds that are lost by it.

    python -m scripts.chaos.closings [--times 20] [--json]

Half of the nodes run in the foreground of an interactive bash, as in a window; the others are the terminal's only
process, as of ``ssh -t HOST starling up``. After some rounds the terminal goes away: the kernel sends a hang-up, a
shell another, and one more follows here a moment later, as a slow shell's does. A round is lost if the node reported
it and no checkpoint holds it once the node has ended.
"""

from __future__ import annotations

import json
import os
import pty
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from scripts.bench.common.reporting import Figure, figures_parser, report

HANG_SECONDS: Final = 120.0
SETTINGS: Final = {
    "STARLING_SWARM__LAN_DISCOVERY": "false",
    "STARLING_API__PORT": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TERM": "xterm",
    "PS1": "$ ",
}


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--times", type=int, default=20, help="closings, every second one of a shell's terminal")
    options = parser.parse_args()
    chance = random.Random(0)
    lost, ended_badly = [], 0
    with tempfile.TemporaryDirectory(prefix="closings-") as folder:
        for number in range(options.times):
            home = Path(folder) / str(number)
            closed(home, in_shell=number % 2 == 0, rest_seconds=chance.random())
            lost.append(rounds_lost(home))
            ended_badly += not (home / "metrics.jsonl").read_text().rstrip().endswith("}")
            sys.stderr.write(f"\rclosing {number + 1} of {options.times}: {sum(map(bool, lost))} lost rounds ")
            sys.stderr.flush()
    sys.stderr.write("\n")
    figures = [
        Figure("closings of a terminal", len(lost), "", "higher"),
        Figure("of these, closings that lost rounds", sum(map(bool, lost)), "", "lower", "none"),
        Figure("rounds lost, at most", max(lost, default=0), "", "lower", "none"),
    ]
    report("closings", figures, as_json=options.json)
    raise SystemExit(1 if any(lost) or ended_badly else 0)


def closed(home: Path, *, in_shell: bool, rest_seconds: float) -> None:
    """Starts a node in a terminal, closes that a moment after its third round, and returns once the node is gone."""
    command = [sys.executable, "-m", "node.cli.main", "up", "--home", str(home), "--listen", "/ip4/127.0.0.1/tcp/0"]
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(SETTINGS)
        if in_shell:
            os.execvp("bash", ["bash", "--norc", "-i"])
        os.execv(sys.executable, command)
    try:
        if in_shell:
            os.write(terminal, (shlex.join(command) + "\n").encode())
        _read_until_round(home, terminal, 3)
        time.sleep(rest_seconds)
    finally:
        supervisors = _commands(home)
        os.close(terminal)
    time.sleep(0.05)  # bash may pass the hang-up on before or after the node has heard the kernel's
    for pid in supervisors:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)
    began = time.monotonic()
    while _holders(home) and time.monotonic() - began < HANG_SECONDS:
        time.sleep(0.1)
    for pid in _holders(home):
        os.kill(pid, signal.SIGKILL)
        raise RuntimeError(f"the node in {home} did not end after its terminal was closed")
    os.waitpid(child, 0)


def rounds_lost(home: Path) -> int:
    """Returns how many of the rounds that a node reported are in no checkpoint."""
    done = saved = 0
    for line in (home / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        done = max(done, event["round"] if event["event"] == "round" else 0)
        saved = max(saved, event["round"] if event["event"] == "checkpoint" else 0)
    return max(0, done - saved)


def _read_until_round(home: Path, terminal: int, number: int) -> None:
    """Reads what the node prints, so that it never waits for its terminal, until it has done so many rounds."""
    os.set_blocking(terminal, False)
    began = time.monotonic()
    while time.monotonic() - began < HANG_SECONDS:
        try:
            while os.read(terminal, 1 << 16):
                pass
        except BlockingIOError:
            pass
        metrics = home / "metrics.jsonl"
        if metrics.exists() and metrics.read_text().count('"event":"round"') >= number:
            return
        time.sleep(0.05)
    raise RuntimeError(f"the node in {home} did not do {number} rounds")


def _commands(home: Path) -> list[int]:
    """Returns the process of the command that runs the node in ``home``."""
    return [pid for pid, words, _ in _processes() if str(home).encode() in words]


def _holders(home: Path) -> list[int]:
    """Returns the processes of the node in ``home``: they have it in their command line, or files of it open."""
    return [
        pid
        for pid, words, opened in _processes()
        if str(home).encode() in words or any(path.startswith(f"{home}/") for path in opened)
    ]


def _processes() -> Iterator[tuple[int, list[bytes], list[str]]]:
    """Yields each process's number, the words of its command, and the files that it has open."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or is another user's
                words = (entry / "cmdline").read_bytes().split(b"\0")
                yield int(entry.name), words, [str(each.readlink()) for each in (entry / "fd").iterdir()]


if __name__ == "__main__":
    main()
