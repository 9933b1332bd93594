"""Machines, each a network namespace with its own address, for ``try_private_cluster`` and ``try_open_swarm``.

A machine has a home directory and one terminal in which a node may run. ``network`` makes the namespaces and the bridge
between them; it must itself run inside namespaces that nothing else uses, where ``inside_namespaces`` brings it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from node.configuration.schedule import DAYS

MACHINES = ("first", "second", "third")
HANG_SECONDS = 400.0  # a guard against hangs, not a limit on speed
INVITE, PEER = "starling://1…", "12D3KooW…"
INSIDE = "STARLING_MACHINES_INSIDE"
SMALL_ROUNDS = {  # a node's usual round has four times the groups, and its evaluations 16 times the prompts
    "STARLING_LEARNER__OWN_GROUPS": "8",
    "STARLING_EVALUATION__PROMPTS": "2",
}


class BrokenPromiseError(Exception):
    """Something differs from what the page says."""


@dataclass(frozen=True)
class Step:
    """One line that a person types."""

    chapter: str
    machine: str
    command: str


def steps(page: str) -> Iterator[Step]:
    """Yields the lines that the page has typed on the three machines, in its order."""
    chapter, machine, inside = "", None, False
    for line in page.splitlines():
        if line.startswith("```"):
            inside, machine = not inside and line == "```sh", None
        elif not inside and line.startswith("## "):
            chapter = line.removeprefix("## ")
        elif inside and (marked := re.match(r"# on the (\w+) machine\b", line)):
            machine = marked[1]
        elif inside and machine is not None and line:
            yield Step(chapter, machine, line)


class Machine:
    """A namespace with its address, a home directory, and one terminal in which a node may run."""

    def __init__(self, number: int, homes: Path) -> None:
        self.namespace, self.address = f"machine{number}", f"10.78.0.{number}"
        self.home = homes / MACHINES[number - 1]
        self.home.mkdir(parents=True)
        self._up: subprocess.Popen[bytes] | None = None
        self._paused = False
        self.needs_training, self.small_rounds = True, False  # of the nodes that are started from now on
        self.log = self.home / "terminal"

    @property
    def data(self) -> Path:
        return self.home / ".local" / "share" / "starling"

    def run(self, command: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Runs ``command`` to its end, with ``typed`` on its standard input; returns both outputs as one text."""
        return subprocess.run(
            self._shell(command), input=typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=self._environment(), cwd=self.home, timeout=HANG_SECONDS, check=False,
        )  # fmt: skip

    def up(self, command: str) -> None:
        """Starts ``command`` in the machine's terminal, after Ctrl-C to what runs there."""
        self.interrupt()
        with self.log.open("wb") as log:
            self._up = subprocess.Popen(
                self._shell(f"exec env {command}"), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment(), cwd=self.home,
            )  # fmt: skip

    def interrupt(self) -> None:
        if self._up is not None and self._up.poll() is None:
            if self._paused:
                self._signal_learner(signal.SIGCONT)
            self._up.send_signal(signal.SIGINT)
            self._up.wait(HANG_SECONDS)
        self._up, self._paused = None, False

    def pause_learner(self) -> None:
        """Stops the learner of the node in the terminal until ``interrupt``; the rest of the node continues."""
        self._paused = True
        self._signal_learner(signal.SIGSTOP)

    def _signal_learner(self, number: signal.Signals) -> None:
        asked = self.run("starling status --json")
        pid = json.loads(asked.stdout)["learner_process"]["pid"] if asked.returncode == 0 else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, number)

    def ended(self) -> int | None:
        """Returns the exit code of what is in the terminal; None while it runs."""
        return None if self._up is None else self._up.poll()

    def seen(self) -> str:
        """Returns what the terminal shows."""
        return self.log.read_text(errors="replace")

    def _shell(self, command: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", command]

    def _environment(self) -> dict[str, str]:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("STARLING_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        never = {} if self.needs_training else {"STARLING_MACHINE__SCHEDULE": another_day()}
        small = SMALL_ROUNDS if self.small_rounds else {}
        own = {"HOME": str(self.home), "XDG_DATA_HOME": "", "PATH": path, "TMPDIR": str(self.home)}
        return clean | never | small | own


def another_day() -> str:
    """Returns a schedule with which no learner starts for the next days."""
    return DAYS[(date.today().weekday() + 3) % len(DAYS)]


class Story:
    """The three machines, and what the last command printed."""

    def __init__(self, machines: dict[str, Machine], say: Callable[[str], None], *, pausing: bool = False) -> None:
        """``pausing``: learners have small rounds, pause, and are not started, where no later promise needs them."""
        self.machines = machines
        self.say = say
        self._pausing = pausing
        for machine in machines.values():
            machine.small_rounds = pausing
        self.invite = ""
        self.peer = ""  # of the third machine
        self.printed = ""  # by the last command

    def type(self, step: Step) -> float:
        """Types one line; returns the seconds until it ended, or until its node was started."""
        command = step.command.replace(INVITE, self.invite).replace(PEER, self.peer)
        machine, began = self.machines[step.machine], time.monotonic()
        if re.match(r"(STARLING_JOIN=\S+ .*)?starling up\b", command):
            machine.up(command)
            return time.monotonic() - began
        ended = machine.run(command, self.invite + "\n")
        self.printed = ended.stdout
        if ended.returncode != 0:
            raise BrokenPromiseError(f"exit code {ended.returncode}: {ended.stdout.strip()}")
        if command.startswith("starling invite"):
            self.invite = ended.stdout.strip().splitlines()[-1]
        return time.monotonic() - began

    def need_no_training(self) -> None:
        """Allows the learner on the first machine to pause until Ctrl-C, and nodes that are started from now on to do
        without one: no later promise is about training."""
        if self._pausing:
            self.machines["first"].pause_learner()
            for machine in self.machines.values():
                machine.needs_training = False

    def end(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Machine.interrupt, self.machines.values()))

    def forget_clusters(self) -> None:
        self.end()
        for machine in self.machines.values():
            shutil.rmtree(machine.data, ignore_errors=True)


def wait_until(holds: Callable[[], object], what: str, running: Machine | None = None) -> float:
    """Returns the seconds until ``holds()`` is true.

    Raises ``BrokenPromiseError`` after ``HANG_SECONDS``, or where the node in the terminal of ``running`` ends before.
    """
    began = time.monotonic()
    while not holds():
        if running is not None and running.ended() is not None:
            raise BrokenPromiseError(f"not so: {what}; the node ended with {running.ended()}: {running.seen()[-2000:]}")
        if time.monotonic() - began > HANG_SECONDS:
            raise BrokenPromiseError(f"not within {HANG_SECONDS:g} s: {what}")
        time.sleep(2.0)  # each check starts a process, which slows the node that it waits for
    return time.monotonic() - began


def inside_namespaces(module: str) -> None:
    """Returns inside namespaces of their own (network, mounts, processes): at the first call this process becomes one
    that runs ``python -m module`` with the same arguments there. Nothing remains of them, however it ends."""
    if INSIDE in os.environ:
        return
    missing = [tool for tool in ("ip", "unshare", "mount") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"{', '.join(missing)} not found: install iproute2, util-linux and mount")
    apart = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    apart += ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*apart, sys.executable, "-m", module, *sys.argv[1:]]
    os.execvpe(command[0], command, os.environ | {INSIDE: "yes"})


def network(machines: int = len(MACHINES)) -> None:
    """Makes so many namespaces on one bridge. Call it after ``inside_namespaces``."""
    commands = ["mount -t tmpfs none /run", "mount -t tmpfs none /media", "mkdir /media/stick"]
    commands += ["ip link set lo up", "ip link add br0 type bridge", "ip link set br0 up"]
    for number in range(1, machines + 1):
        name = f"machine{number}"
        commands += [
            f"ip netns add {name}",
            f"ip link add eth0 netns {name} type veth peer name port{number}",
            f"ip link set port{number} master br0 up",
            f"ip -n {name} address add 10.78.0.{number}/24 dev eth0",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set eth0 up",
        ]
    for command in commands:
        subprocess.run(command.split(), check=True)
