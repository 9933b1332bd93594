"""Closes the terminals of nodes, as people do, and counts the rounds that are lost by it.

    python -m scripts.chaos.closings [--times 20] [--forms window,ssh,tmux,nohup] [--json]

The forms take turns:

    window   the node in the foreground of an interactive bash, as in a window
    ssh      the node is the terminal's only process, as of ``ssh -t HOST starling up``
    tmux     the same as window in a pane of tmux, whose session is killed
    nohup    ``nohup starling up &`` in an interactive bash: the node has to go on, and is ended by ``starling down``

After some rounds the terminal goes away: the kernel sends a hang-up, a shell another, and one more follows here a
moment later, as a slow shell's does. A round is lost if the node reported it and no checkpoint holds it once the node
has ended.
"""

from __future__ import annotations

import json
import os
import pty
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from scripts.bench.common.reporting import Figure, figures_parser, report

FORMS: Final = ("window", "ssh", "tmux", "nohup")
HANG_SECONDS: Final = 300.0
ROUNDS: Final = 3  # before a terminal is closed, and after that in a node that goes on
SETTINGS: Final = {
    "STARLING_SWARM__LAN_DISCOVERY": "false",
    "STARLING_API__PORT": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TERM": "xterm",
    "PS1": "$ ",
}
SHELL: Final = ("bash", "--norc", "-i")


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--times", type=int, default=20, help="closings, of all forms in turn (default 20)")
    parser.add_argument("--forms", default=",".join(FORMS), help=f"of {', '.join(FORMS)}")
    options = parser.parse_args()
    forms = options.forms.split(",")
    if not set(forms) <= set(FORMS):
        parser.error(f"--forms: choose of {', '.join(FORMS)}")
    chance = random.Random(0)
    lost: dict[str, list[int]] = {form: [] for form in forms}
    with tempfile.TemporaryDirectory(prefix="closings-") as folder:
        for number, form in enumerate(islice(cycle(forms), options.times), start=1):
            home = Path(folder) / str(number)
            closed(home, form, rest_seconds=chance.random())
            lost[form].append(rounds_lost(home))
            bad = sum(map(bool, (each for of_form in lost.values() for each in of_form)))
            sys.stderr.write(f"\rclosing {number} of {options.times}, {form}: {bad} lost rounds ")
            sys.stderr.flush()
    sys.stderr.write("\n")
    figures = []
    for form, of_form in lost.items():
        figures += [
            Figure(f"{form}: closings of a terminal", len(of_form), "", "higher"),
            Figure(f"{form}: of these, closings that lost rounds", sum(map(bool, of_form)), "", "lower", "none"),
            Figure(f"{form}: rounds lost, at most", max(of_form, default=0), "", "lower", "none"),
        ]
    report("closings", figures, as_json=options.json)
    raise SystemExit(1 if any(map(any, lost.values())) else 0)


def closed(home: Path, form: str, *, rest_seconds: float) -> None:
    """Starts a node in a terminal, closes that a moment after its third round, and returns once the node is gone.

    Raises ``RuntimeError`` for a node that does not do its rounds or does not end, and for one under nohup that ends
    with its terminal.
    """
    node = (sys.executable, "-m", "node.cli.main")
    command = [*node, "up", "--home", str(home), "--listen", "/ip4/127.0.0.1/tcp/0"]
    typed = f"nohup {shlex.join(command)} > /dev/null &" if form == "nohup" else shlex.join(command)
    tmux = ("tmux", "-L", f"closings-{os.getpid()}", "-f", os.devnull)
    child = terminal = None
    if form == "tmux":
        subprocess.run([*tmux, "new-session", "-d", *SHELL], env={**os.environ, **SETTINGS}, check=True)
    else:
        child, terminal = pty.fork()
        if child == 0:
            os.environ.update(SETTINGS)
            words = command if form == "ssh" else SHELL
            os.execvp(words[0], words)
    try:
        if terminal is None:
            subprocess.run([*tmux, "send-keys", typed, "Enter"], check=True)
        elif form != "ssh":
            os.write(terminal, f"{typed}\n".encode())
        _read_until_round(home, terminal, ROUNDS)
        time.sleep(rest_seconds)
    finally:
        supervisors = _commands(home)
        if terminal is None:
            subprocess.run([*tmux, "kill-session"], check=True)
        else:
            os.close(terminal)
    time.sleep(0.05)  # bash may pass the hang-up on before or after the node has heard the kernel's
    for pid in supervisors:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)
    if form == "nohup":
        _read_until_round(home, None, _rounds(home) + ROUNDS)
        subprocess.run([*node, "down", "--home", str(home)], stdout=subprocess.DEVNULL, check=True)
    began = time.monotonic()
    while _holders(home) and time.monotonic() - began < HANG_SECONDS:
        time.sleep(0.1)
    for pid in _holders(home):
        os.kill(pid, signal.SIGKILL)
        raise RuntimeError(f"the node in {home} did not end after its terminal was closed")
    if child is not None:
        os.waitpid(child, 0)


def rounds_lost(home: Path) -> int:
    """Returns how many of the rounds that a node reported are in no checkpoint."""
    done = saved = 0
    for line in (home / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        done = max(done, event["round"] if event["event"] == "round" else 0)
        saved = max(saved, event["round"] if event["event"] == "checkpoint" else 0)
    return max(0, done - saved)


def _rounds(home: Path) -> int:
    metrics = home / "metrics.jsonl"
    return metrics.read_text().count('"event":"round"') if metrics.exists() else 0


def _read_until_round(home: Path, terminal: int | None, number: int) -> None:
    """Reads what the node prints, so that it never waits for its terminal, until it has done so many rounds."""
    if terminal is not None:
        os.set_blocking(terminal, False)
    began = time.monotonic()
    while time.monotonic() - began < HANG_SECONDS:
        with suppress(BlockingIOError):
            while terminal is not None and os.read(terminal, 1 << 16):
                pass
        if _rounds(home) >= number:
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
