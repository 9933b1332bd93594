"""What the content store takes for a day of rollouts, and how it starts with a million of them.

    python -m scripts.bench.store [--hours 24] [--blobs 1000000] [--json]
    python -m scripts.bench.store --before f764341 [--hours 1]

A day at the rate that was seen with two peers: 20,950 blobs with 3.67 MB of content in 22 minutes. Of three blobs one
is the learner's own, which it hands over, and two are fetched. Each is read once: an own one by a peer, a fetched one
by the learner. The clock is passed in, so that the day takes minutes. Every 30 seconds of it the status is asked and
the store tended; every hour a state of 2 MB is stored and pinned in place of the last. ``--before`` does the same with
the store of an older commit, from the history of this repository, in a process of its own.

Disk is ``st_blocks`` of every file in the folder. The growth of memory is a least-squares line after the first eighth
of the time; "flat" means less than 0.1 MB an hour.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from protocol.blob_id import blob_id
from scripts import REPOSITORY
from scripts.bench.common.process_memory import process_memory
from scripts.bench.common.reporting import Figure, add_json_flag, report
from swarm.blobs.store import ContentStore

BLOBS_PER_SECOND = 20_950 / (22 * 60)
MEAN_BYTES = 3_670_000 // 20_950
TEND_SECONDS = 30.0  # ``swarm.service.MAINTENANCE_SECONDS``
EXPIRE_SECONDS = 2100.0  # ``swarm.announcements.group_sharing.GROUP_BLOB_SECONDS``
BUDGET_BYTES = 2 << 30
STATE_BYTES = 2_000_000
WARM_UP_SHARE = 1 / 8


class Clock:
    def __init__(self) -> None:
        self.now_seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_seconds


def on_disk(folder: Path) -> tuple[int, int]:
    """Returns the bytes of all blocks below a folder, and its files."""
    blocks = files = 0
    for at, _, names in os.walk(folder):
        for name in names:
            blocks += os.lstat(f"{at}/{name}").st_blocks * 512
            files += 1
    return blocks, files


class Day:
    """The store, and everything that is done with it; ``hand_over`` and ``tend`` differ between versions."""

    def __init__(
        self, store: Any, clock: Clock, hand_over: Callable[[bytes], bytes], tend: Callable[[], object]
    ) -> None:
        self.store, self.clock = store, clock
        self._hand_over, self._tend = hand_over, tend
        self._random = Random(0)
        self._state: bytes | None = None
        self.status_seconds: list[float] = []
        self.tend_seconds: list[float] = []
        self.memory: list[tuple[float, int]] = []  # (hours, resident bytes)
        self.most_bytes = self.most_files = 0

    def run(self, hours: float) -> None:
        blobs, began = 0, self.clock.now_seconds
        while (passed := self.clock.now_seconds - began) < hours * 3600.0:
            for _ in range(int((passed + TEND_SECONDS) * BLOBS_PER_SECOND) - blobs):
                self._one(blobs)
                blobs += 1
            self.clock.now_seconds += TEND_SECONDS
            self._ask_and_tend()
            if passed % 3600.0 == 0.0:
                self._publish()
            if passed % 1800.0 == 0.0:
                self._look(passed / 3600.0)
        self._look(hours)

    def _one(self, number: int) -> None:
        content = self._random.randbytes(self._random.randint(1, 2 * MEAN_BYTES - 1))
        if number % 3 == 0:
            blob = self._hand_over(content)
        else:
            blob = blob_id(content)
            self.store.put_fetched(blob, content)
        if self.store.read(blob) != content:
            raise AssertionError("the store gave back another content")

    def _ask_and_tend(self) -> None:
        began = time.perf_counter()
        self.store.total_bytes()
        self.status_seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        self._tend()
        self.tend_seconds.append(time.perf_counter() - began)

    def _publish(self) -> None:
        before, self._state = self._state, self.store.put(self._random.randbytes(STATE_BYTES))
        self.store.pin(self._state)
        if before is not None:
            self.store.unpin(before)

    def _look(self, hours: float) -> None:
        bytes_now, files = on_disk(self.store.directory)
        self.most_bytes, self.most_files = max(self.most_bytes, bytes_now), max(self.most_files, files)
        self.memory.append((hours, process_memory().resident))

    def growth_bytes_per_hour(self) -> float:
        """Of resident memory, after the warm-up."""
        last = self.memory[-1][0]
        samples = [(hours, size) for hours, size in self.memory if hours >= WARM_UP_SHARE * last]
        return statistics.linear_regression(*zip(*samples, strict=True)).slope if len(samples) > 1 else 0.0


def day_of_this_version(folder: Path, clock: Clock) -> Day:
    from swarm.blobs.incoming import BlobInbox

    store = ContentStore(folder, budget_bytes=BUDGET_BYTES, expire_seconds=EXPIRE_SECONDS, wall_clock=clock)
    inbox = BlobInbox(folder, wall_clock=clock)

    def hand_over(content: bytes) -> bytes:
        blob, _ = inbox.put(content)
        store.take_over(blob)
        return blob

    def tend() -> None:
        while store.tend():
            pass

    return Day(store, clock, hand_over, tend)


def day_of_an_older_version(folder: Path, clock: Clock) -> Day:
    store = ContentStore(folder, budget_bytes=BUDGET_BYTES, wall_clock=clock)
    learner = ContentStore(folder, wall_clock=clock)
    return Day(store, clock, learner.put, store.evict)


def figures_of(day: Day, hours: float, bars: bool) -> list[Figure]:
    of = f"{hours:g} h of rollouts"
    # The slowest hundredth: above it is what the machine's other programs take.
    status = sorted(day.status_seconds)[int(0.99 * len(day.status_seconds))]
    tend = sorted(day.tend_seconds)[int(0.99 * len(day.tend_seconds))]
    return [
        Figure(f"{of}: disk, at most", day.most_bytes / 1e6, "MB", "lower", "≤ 300" if bars else None),
        Figure(f"{of}: files, at most", day.most_files, "files", "lower", "≤ 2000" if bars else None),
        Figure("status, slowest of 100", status * 1e3, "ms", "lower", "≤ 1" if bars else None),
        Figure("maintenance every 30 s, slowest of 100", tend * 1e3, "ms", "lower"),
        Figure("memory, at the end", day.memory[-1][1] / 1e6, "MB", "lower"),
        Figure("memory, growth", day.growth_bytes_per_hour() / 1e6, "MB/h", "lower", "≤ 0.1" if bars else None),
    ]


def million(folder: Path, blobs: int) -> list[Figure]:
    """Fills a store with so many small blobs, all in use, and starts another process with it."""
    from swarm.blobs.packed import PackedBlobs

    random, packed = Random(1), PackedBlobs(folder / "packed.db")
    for _ in range(blobs):
        content = random.randbytes(random.randint(1, 2 * MEAN_BYTES - 1))
        packed.put(blob_id(content), content, fetched=False, used_at_seconds=time.time())
    there = len(packed)  # a few had the content of another
    packed.close()
    command = [sys.executable, "-m", "scripts.bench.store", "--start", str(folder), "--json"]
    started = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY).stdout)
    if started["blobs"] != there:
        raise AssertionError(f"{started['blobs']} of {there} blobs are there")
    of = f"a store with {blobs:,} blobs"
    return [
        Figure(f"{of}: start", started["seconds"], "s", "lower", "≤ 2"),
        Figure(f"{of}: memory that it takes", started["memory_bytes"] / 1e6, "MB", "lower"),
        Figure(f"{of}: disk", on_disk(folder)[0] / 1e6, "MB", "lower"),
    ]


def start(folder: Path) -> None:
    """The process that starts: until the first status, the first blob and the first maintenance."""
    before_bytes, began = process_memory().resident, time.perf_counter()
    store = ContentStore(folder, budget_bytes=BUDGET_BYTES, expire_seconds=EXPIRE_SECONDS)
    store.total_bytes()
    store.read(store.put(hashlib.sha256(b"new").digest()))
    store.tend()
    seconds = time.perf_counter() - began
    blobs = len(store._packed) - 1
    print(json.dumps({"seconds": seconds, "memory_bytes": process_memory().resident - before_bytes, "blobs": blobs}))


def before(commit: str, hours: float, as_json: bool) -> None:
    """Runs the day with the store of an older commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True, cwd=REPOSITORY).stdout
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive)
        flags = ["--older", "--hours", str(hours), *(["--json"] if as_json else [])]
        environment = {**os.environ, "PYTHONPATH": folder}
        subprocess.run([sys.executable, str(Path(__file__)), *flags], check=True, cwd=folder, env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="0: only the start")
    parser.add_argument("--blobs", type=int, default=1_000_000, help="in the store that is started; 0: only the day")
    parser.add_argument("--before", metavar="COMMIT", help="measure the store of this commit instead")
    parser.add_argument("--older", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.start is not None:
        start(arguments.start)
        return
    if arguments.before is not None:
        before(arguments.before, arguments.hours, arguments.json)
        return
    figures: list[Figure] = []
    if arguments.hours > 0:
        with tempfile.TemporaryDirectory() as folder:
            make = day_of_an_older_version if arguments.older else day_of_this_version
            day = make(Path(folder) / "blobs", Clock())
            day.run(arguments.hours)
            figures += figures_of(day, arguments.hours, bars=not arguments.older)
    if arguments.blobs > 0 and not arguments.older:
        with tempfile.TemporaryDirectory() as folder:
            figures += million(Path(folder), arguments.blobs)
    report("store before" if arguments.older else "store", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
