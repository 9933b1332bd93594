"""Swarm processes that end, and whether another one then knows it.

    python -m scripts.chaos.goodbyes [--times 1000] [--together 8] [--stopped 0 1 5] [--whole]

Real swarm processes on the loopback interface: one listens; ``--together`` others at a time join it, are heard of, and
are asked to end in one of four ways in turn. For each number of ``--stopped`` the listener is stopped (SIGSTOP) for
that many seconds from the moment before, as a process that gets no processor. A goodbye is lost where the listener
still has the peer ``KNOWN_SECONDS`` after it goes on: it then takes it for present until its heartbeats have been
missing. Swarm processes are forked from one that has imported what they need, which halves what a goodbye costs (half a
second of a processor); with ``--whole`` each is started from nothing.
Ends with 1 if one is lost, or a process does not end with 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from scripts.bench.common.swarm_processes import SwarmProcess

WAYS: Final = ("terminated", "interrupted", "input closed", "told to leave")
HEARD_SECONDS: Final = 60.0
KNOWN_SECONDS: Final = 5.0
ENDED_SECONDS: Final = 60.0
HEARTBEAT_SECONDS: Final = 60.0  # so that nobody is missed for want of heartbeats in the meantime


def present(listener: SwarmProcess) -> set[str]:
    return {each.peer for each in listener.client.peers() if each.heartbeat_age_seconds is not None}


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def ask_to_end(process: SwarmProcess, way: str) -> None:
    stdin = process.process.stdin
    assert stdin is not None
    match way:
        case "terminated":
            process.process.terminate()
        case "interrupted":
            process.process.send_signal(signal.SIGINT)
        case "input closed":
            stdin.close()
            process.process.stdin = None
        case _:
            process.client.leave("told to")


def started(number: int, folder: Path, peers: Sequence[str], *, forked: bool) -> SwarmProcess:
    return SwarmProcess(number, folder, peers, forked=forked, heartbeat_seconds=HEARTBEAT_SECONDS)


def said(
    listener: SwarmProcess, folder: Path, together: int, stopped_seconds: float, *, forked: bool
) -> tuple[list[str], float]:
    """Returns by which way each process ended whose goodbye was lost, and the seconds until the last one had ended."""
    others: list[SwarmProcess] = []
    try:
        for number in range(1, together + 1):
            others.append(started(number, folder, listener.addresses, forked=forked))
        ids = [process.client.status().peer for process in others]
        if not wait_until(lambda: present(listener) >= set(ids), HEARD_SECONDS):
            sys.exit(f"not all were heard of within {HEARD_SECONDS:g} s")
        if stopped_seconds:
            listener.process.send_signal(signal.SIGSTOP)
        ways = [WAYS[number % len(WAYS)] for number in range(together)]
        began = time.monotonic()
        for process, way in zip(others, ways, strict=True):
            ask_to_end(process, way)
        time.sleep(stopped_seconds)
        listener.process.send_signal(signal.SIGCONT)
        for process, way in zip(others, ways, strict=True):
            if (code := process.process.wait(ENDED_SECONDS)) != 0:
                sys.exit(f"{way}: ended with {code}")
        took_seconds = time.monotonic() - began
        wait_until(lambda: not present(listener) & set(ids), KNOWN_SECONDS)
        left = present(listener)
        return [way for peer, way in zip(ids, ways, strict=True) if peer in left], took_seconds
    finally:
        listener.process.send_signal(signal.SIGCONT)
        for process in others:
            process.client.close()
            process.process.kill()
            process.process.communicate()


def run(times: int, together: int, stopped: Sequence[float], *, forked: bool) -> int:
    lost_in_all = 0
    for stopped_seconds in stopped:
        count, lost, slowest = 0, list[str](), 0.0
        while count < times:
            with tempfile.TemporaryDirectory() as folder:
                listener = started(0, Path(folder), (), forked=forked)
                try:
                    now_lost, took_seconds = said(
                        listener, Path(folder), min(together, times - count), stopped_seconds, forked=forked
                    )
                finally:
                    listener.close()
            count, lost, slowest = count + together, lost + now_lost, max(slowest, took_seconds)
            print(f"\r{count} of {times}, {len(lost)} lost", end="", file=sys.stderr, flush=True)
        count = min(count, times)
        print(file=sys.stderr)
        print(
            f"listener stopped for {stopped_seconds:g} s: {count} goodbyes, {len(lost)} lost"
            f"{f' ({sorted(lost)})' if lost else ''}; the slowest had ended after {slowest:.1f} s; "
            f"load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
        lost_in_all += len(lost)
    return 1 if lost_in_all else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000, help="goodbyes of each kind (default 1000)")
    parser.add_argument("--together", type=int, default=8, help="that end at once (default 8)")
    parser.add_argument("--stopped", type=float, nargs="+", default=[0.0, 1.0, 5.0], metavar="SECONDS")
    parser.add_argument("--whole", action="store_true", help="start each process from nothing")
    flags = parser.parse_args()
    sys.exit(run(flags.times, flags.together, flags.stopped, forked=not flags.whole))


if __name__ == "__main__":
    main()
