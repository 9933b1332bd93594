"""The processes of the nodes as the kernel shows them: found by a mark in their environment, measured at each look."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.bench.common.process_usage import process_memory

MARK: Final = "CHAOS_MARK"  # in the environment of every process that the script starts, and of descendants
NODE: Final = "CHAOS_NODE"  # likewise: which node it belongs to
SUPERVISOR: Final = "supervisor"
LEARNER, SWARM = "learner", "swarm"
PROGRAMS: Final = {"scripts.chaos.stub_learner": LEARNER, "scripts.chaos.swarm_under_conditions": SWARM}
PROC: Final = Path("/proc")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Identity:
    """A process as it was started; ``started`` in clock ticks tells it from a later one with the same id."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """One process at one look."""

    identity: Identity
    node: int
    kind: str  # "supervisor", "swarm" or "learner"
    parent: int
    stopped: bool
    resident_bytes: int
    swapped_bytes: int
    descriptors: int
    cpu_seconds: float


def look(mark: str) -> tuple[list[SeenProcess], list[Identity]]:
    """Returns the living processes with the mark, and those that have ended and that a living one, which is not
    stopped, has not waited for."""
    stats = dict(_stats())
    found = []
    for identity, fields in stats.items():
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            if fields[0] != "Z" and (belongs := _belongs(identity, f"{MARK}={mark}".encode())) is not None:
                found.append(_seen(identity, *belongs, fields))
    ours = {each.identity.pid for each in found if not each.stopped}
    return found, [identity for identity, fields in stats.items() if fields[0] == "Z" and int(fields[1]) in ours]


def send(identity: Identity, number: signal.Signals) -> bool:
    """Sends a signal to exactly this process; returns whether it was still there."""
    return _done_to(identity, lambda pid: os.kill(pid, number))


def bound_memory(identity: Identity, *, bounded: bool) -> bool:
    """Lets exactly this process, and children that it starts from now on, have no more address space than it has now,
    or as much as they want again; returns whether it was still there."""

    def bound(pid: int) -> None:
        pages = int((PROC / str(pid) / "statm").read_text().split()[0])
        most = pages * _PAGE_BYTES if bounded else resource.RLIM_INFINITY
        resource.prlimit(pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

    return _done_to(identity, bound)


def _done_to(identity: Identity, act: Callable[[int], object]) -> bool:
    """Calls ``act`` with the id of exactly this process; returns whether it was still there."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if _stat(PROC / str(identity.pid))[19] == str(identity.started):
            act(identity.pid)
            return True
    return False


def _belongs(identity: Identity, mark: bytes) -> tuple[int, str] | None:
    """Returns node and kind of a process that has the mark. One that has not begun its own program counts as a
    supervisor for that moment."""
    folder = PROC / str(identity.pid)
    entries = (folder / "environ").read_bytes().split(b"\0")
    if mark not in entries:
        return None
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    node = next(entry for entry in entries if entry.startswith(f"{NODE}=".encode())).split(b"=")[1]
    return int(node), next((kind for program, kind in PROGRAMS.items() if program in words), SUPERVISOR)


def _stats() -> Iterator[tuple[Identity, list[str]]]:
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = _stat(folder)
                yield Identity(int(folder.name), int(fields[19])), fields


def _stat(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _seen(identity: Identity, node: int, kind: str, fields: list[str]) -> SeenProcess:
    memory = process_memory(identity.pid)
    return SeenProcess(
        identity,
        node,
        kind,
        parent=int(fields[1]),
        stopped=fields[0] in "Tt",
        resident_bytes=memory.resident,
        swapped_bytes=memory.swapped,
        descriptors=sum(1 for _ in (PROC / str(identity.pid) / "fd").iterdir()),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
    )
