"""What a process sees of a clock, a disk and name servers that another one changes, and of memory that it lacks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import REPOSITORY
from scripts.chaos import conditions, marked_processes
from scripts.chaos.conditions import MANY, NOBODY, Condition, Lie, told
from scripts.chaos.marked_processes import Identity

LOOKS = """
from scripts.chaos import conditions
conditions.install()
import sys, time
from pathlib import Path
slept = []
time.sleep = slept.append
for file in map(Path, sys.argv[1:]):
    slept.clear()
    file.write_text("")
    print(sum(slept))
print(time.time())
"""


def looked(home: Path, *files: Path) -> list[float]:
    """Returns how much longer it takes to open each file, and the time, as a process of the node sees them."""
    environment = os.environ | {conditions.VARIABLE: str(home.with_suffix(conditions.SUFFIX))}
    command = [sys.executable, "-c", LOOKS, *map(str, files)]
    told = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return [float(line) for line in told.split()]


def test_a_clock_moves_and_files_of_the_node_alone_are_slow_until_the_conditions_end(tmp_path: Path) -> None:
    home = tmp_path / "n1"
    home.mkdir()
    file = home.with_suffix(conditions.SUFFIX)
    conditions.prepare(file)
    conditions.put(file, Condition.CLOCK, 3600.0)
    conditions.put(file, Condition.DISK, 5.0)
    own, other, seen = looked(home, home / "one", tmp_path / "other")
    assert (own, other) == (5.0, 0.0)
    assert seen - time.time() > 3000.0
    conditions.put(file, Condition.CLOCK, 0.0)
    conditions.put(file, Condition.DISK, 0.0)
    own, seen = looked(home, home / "one")
    assert own == 0.0 and abs(seen - time.time()) < 3000.0


ASKS = """
from pathlib import Path
import sys
from scripts.chaos import conditions
conditions.install()
import anyio
from trio.socket import getaddrinfo

async def main():
    for lie in (conditions.Lie.NONE, conditions.Lie.ANOTHER_NODE):
        conditions.put(Path(sys.argv[1]), conditions.Condition.NAMES, lie)
        print([where[0] for *_, where in await getaddrinfo("n1.chaos.test", 4001)])

anyio.run(main, backend="trio")
"""


def test_a_name_of_a_node_leads_where_the_name_servers_say_for_trio_too(tmp_path: Path) -> None:
    file = (tmp_path / "n0").with_suffix(conditions.SUFFIX)
    conditions.prepare(file)
    environment = os.environ | {
        conditions.VARIABLE: str(file),
        conditions.NAMES_VARIABLE: json.dumps({"n0.chaos.test": "10.0.0.1", "n1.chaos.test": "10.0.0.2"}),
    }
    command = [sys.executable, "-c", ASKS, str(file)]
    found = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == ["['10.0.0.2']", "['10.0.0.1']"]


def test_name_servers_lie_in_five_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("scripts.chaos.conditions.time.sleep", slept.append)
    nodes = {f"n{number}": f"10.0.0.{number}" for number in range(3)}
    assert told(nodes, "n2", Lie.NONE) == ["10.0.0.2"]
    assert told(nodes, "n2", Lie.ANOTHER_NODE) == ["10.0.0.0"]
    assert told(nodes, "n2", Lie.NOBODY) == [NOBODY]
    many = told(nodes, "n2", Lie.MANY)
    assert len(set(many)) == MANY + 1 and many[-1] == "10.0.0.2"
    assert all(address.startswith("127.0.") for address in many[:-1])
    for lie in (Lie.NO_ANSWER, Lie.NO_SUCH_NAME):
        with pytest.raises(socket.gaierror):
            told(nodes, "n2", lie)
    assert slept == [conditions.UNANSWERED_SECONDS]


TAKES = """
import sys
print(flush=True)
for _ in sys.stdin:
    try:
        bytearray(64 << 20)
        print("taken", flush=True)
    except MemoryError:
        print("none", flush=True)
"""


def test_a_process_without_memory_gets_none_until_it_may_again() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TAKES], text=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        started = int((Path("/proc") / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[19])

        def takes() -> str:
            print(file=process.stdin, flush=True)
            return str(process.stdout.readline()).strip()

        answers = [takes()]
        for bounded in (True, False):
            assert marked_processes.bound_memory(Identity(process.pid, started), bounded=bounded)
            answers.append(takes())
        assert not marked_processes.bound_memory(Identity(process.pid, started + 1), bounded=True)
        process.stdin.close()
    assert answers == ["taken", "none", "taken"]
