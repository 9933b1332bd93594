"""Follows docs/private-cluster.md as written, on three machines, and checks what it promises. Linux; needs an installed
``starling`` beside this Python.

The machines are network namespaces with addresses of their own, joined by a bridge; the data directories lie in memory.
All of it is inside further namespaces (network, mounts, processes) that end with the script, however it ends: nothing
is left behind, and no packet leaves them. It needs root, or unprivileged user namespaces.

What is typed is taken from the page: each fenced block whose first line is ``# on the <which> machine``. The invite
``starling://1…`` is the one printed last, the peer ``12D3KooW…`` the third machine; nothing else is changed. A line
with ``starling up`` keeps a terminal, and what was up there before is ended by Ctrl-C; everything else runs to its end
in another one. A promise of a command is checked right after it (``scripts/private_cluster_promises.py``).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "private-cluster.md"
MACHINES = ("first", "second", "third")
OFFLINE = "An owner's key that is kept offline"  # a chapter that begins with data directories without a cluster
HANG_SECONDS = 400.0  # a guard against hangs, not a limit on speed
INVITE, PEER = "starling://1…", "12D3KooW…"
INSIDE = "TRY_PRIVATE_CLUSTER_INSIDE"
INTERRUPTED = 130


class BrokenPromiseError(Exception):
    """The page was followed, and something is not as it says."""


@dataclass(frozen=True)
class Step:
    """One line that somebody types."""

    chapter: str
    machine: str
    command: str


def steps(page: str) -> Iterator[Step]:
    """What the page has people type on the three machines, in its order."""
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
    """A namespace with its address, a home directory, and one terminal in which a node may be up."""

    def __init__(self, number: int, homes: Path) -> None:
        self.namespace, self.address = f"machine{number}", f"10.78.0.{number}"
        self.home = homes / MACHINES[number - 1]
        self.home.mkdir(parents=True)
        self._up: subprocess.Popen[bytes] | None = None
        self.log = self.home / "terminal"

    @property
    def data(self) -> Path:
        return self.home / ".local" / "share" / "starling"

    def run(self, command: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """``command`` to its end, with ``typed`` on its standard input; both outputs together."""
        return subprocess.run(
            self._shell(command), input=typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=self._environment(), cwd=self.home, timeout=HANG_SECONDS, check=False,
        )  # fmt: skip

    def up(self, command: str) -> None:
        """``command`` in the terminal that a node keeps, after Ctrl-C to what was there."""
        self.interrupt()
        with self.log.open("wb") as log:
            self._up = subprocess.Popen(
                self._shell(f"exec env {command}"), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment(), cwd=self.home,
            )  # fmt: skip

    def interrupt(self) -> None:
        if self._up is not None and self._up.poll() is None:
            self._up.send_signal(2)
            self._up.wait(HANG_SECONDS)
        self._up = None

    def ended(self) -> int | None:
        """The exit code of what is in the terminal; None while it runs."""
        return None if self._up is None else self._up.poll()

    def seen(self) -> str:
        """What the terminal shows."""
        return self.log.read_text(errors="replace")

    def _shell(self, command: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", command]

    def _environment(self) -> dict[str, str]:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("STARLING_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return clean | {"HOME": str(self.home), "XDG_DATA_HOME": "", "PATH": path, "TMPDIR": str(self.home)}


class Story:
    """The three machines, and what was printed so far."""

    def __init__(self, machines: dict[str, Machine], say: Callable[[str], None]) -> None:
        self.machines = machines
        self.say = say
        self.invite = ""
        self.peer = ""  # of the third machine
        self.printed = ""  # by the last command

    def type(self, step: Step) -> float:
        """Types one line; returns the seconds until it was done, or until a node was on its way."""
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

    def end(self) -> None:
        for machine in self.machines.values():
            machine.interrupt()

    def forget_clusters(self) -> None:
        self.end()
        for machine in self.machines.values():
            shutil.rmtree(machine.data, ignore_errors=True)


def until(holds: Callable[[], object], what: str, lives: Machine | None = None) -> float:
    """Seconds until ``holds()`` is true. Gives up where the node in the terminal of ``lives`` ends before that."""
    began = time.monotonic()
    while not holds():
        if lives is not None and lives.ended() is not None:
            raise BrokenPromiseError(f"not so: {what}; the node ended with {lives.ended()}: {lives.seen()[-2000:]}")
        if time.monotonic() - began > HANG_SECONDS:
            raise BrokenPromiseError(f"not within {HANG_SECONDS:g} s: {what}")
        time.sleep(0.5)  # a look at a node is a process of its own, and takes from what it waits for
    return time.monotonic() - began


def network() -> None:
    """Three namespaces on one bridge, in namespaces of our own: see ``main``."""
    commands = ["mount -t tmpfs none /run", "mount -t tmpfs none /media", "mkdir /media/stick"]
    commands += ["ip link set lo up", "ip link add br0 type bridge", "ip link set br0 up"]
    for number in range(1, len(MACHINES) + 1):
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


def follow(story: Story, *, chapters: set[str] | None) -> None:
    from private_cluster_promises import PROMISES, refusals

    kept: set[str] = set()
    chapter = ""
    for step in steps(PAGE.read_text(encoding="utf-8")):
        if chapters is not None and step.chapter not in chapters:
            continue
        if step.chapter != chapter:
            if step.chapter == OFFLINE:
                story.forget_clusters()
            chapter = step.chapter
            story.say(f"\n## {chapter}")
        seconds = story.type(step)
        story.say(f"{step.machine:>6}$ {step.command}  [{seconds:.1f} s]")
        if (key := (step.machine, step.command)) in PROMISES:
            kept.add(step.command)
            for what, took in PROMISES[key](story):
                story.say(f"        {what}" + (f"  [{took:.1f} s]" if took is not None else ""))
        if step.command == "starling swarm rotate-key":
            story.say("\n## When it does not let you in")
            for what, took in refusals(story):
                story.say(f"        {what}  [{took:.1f} s]")
    missing = {command for _, command in PROMISES} - kept
    if missing and chapters is None:
        raise BrokenPromiseError(f"the page no longer has: {', '.join(sorted(missing))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chapter", action="append", metavar="HEADING", help="Only these, which must make a story.")
    flags = parser.parse_args()
    if INSIDE not in os.environ:
        missing = [tool for tool in ("ip", "unshare", "mount") if shutil.which(tool) is None]
        if missing:
            sys.exit(f"{', '.join(missing)} not found: install iproute2, util-linux and mount")
        apart = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        apart += ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*apart, sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=os.environ | {INSIDE: "yes"}, check=False).returncode)
    network()
    homes = Path("/run/homes")
    machines = {name: Machine(number, homes) for number, name in enumerate(MACHINES, 1)}
    story = Story(machines, lambda line: print(line, flush=True))
    began = time.monotonic()
    try:
        follow(story, chapters=set(flags.chapter) if flags.chapter else None)
    except BrokenPromiseError as error:
        sys.exit(f"the page was followed, and it is not as it says: {error}")
    finally:
        story.end()
    story.say(f"\neverything was as the page says: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.modules["try_private_cluster"] = sys.modules["__main__"]
    main()
