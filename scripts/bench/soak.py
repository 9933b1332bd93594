"""Memory and disk of whole nodes over hours: three nodes with the three built-in models, which learn from each other.

    python -m scripts.bench.soak [--minutes 240] [--warm-up 40] [--json]

Every five seconds the memory of each process is read, and the blocks of each data directory by kind of file. Nothing is
compressed: rounds, expiry and caches have their own times. Printed for each: the most that it took, and its growth
after the warm-up, as the difference between the means of the first and of the last fifth over the time between them, as
well as that of the second half alone; both of the node where it is steepest. Memory is told apart by what grew:
anonymous pages are heaps, tensors and Python's objects, pages from files are libraries that are read as they are used.
A plateau is a growth of less than ``PLATEAU_MB_AN_HOUR``.

A run shows a plateau only of what filled within it. The heaps do after some 1,000 rounds and rollouts expire after
35 minutes, hence the warm-up. ``metrics.jsonl`` grows until the length at which its older half is dropped: how long
that takes at this rate is printed instead.
"""

from __future__ import annotations

import argparse
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from node.supervision.reporting import METRICS_BYTES
from scripts.bench.common.process_memory import process_memory
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.pictures import MODELS, first_address, start
from swarm.blobs.disk_bytes import disk_bytes_below, disk_bytes_of

SAMPLE_SECONDS: Final = 5.0
SAY_SECONDS: Final = 60.0
SHARE: Final = 0.2  # of the time after the warm-up over which a mean is taken
PLATEAU_MB_AN_HOUR: Final = 10.0
MODULES: Final = {"swarm.swarm_process": "swarm process", "node.learner.learner_process": "learner"}
ANONYMOUS: Final = ", anonymous"
FROM_FILES: Final = ", from files"
METRICS: Final = "metrics.jsonl"
REST: Final = "other files"
DIRECTORY: Final = f"data directory without {METRICS}"
FILES: Final = {
    "blobs": "blobs", "checkpoints": "checkpoints", "logs": "logs", METRICS: METRICS, f"{METRICS}.1": METRICS,
}  # fmt: skip


class Sample(NamedTuple):
    seconds: float
    bytes: float


Series = dict[tuple[str, str], list[Sample]]  # by (kind, model)


def sample(nodes: Mapping[str, subprocess.Popen[bytes]], root: Path, seconds: float, series: Series) -> None:
    for model, node in nodes.items():
        kinds = {node.pid: "supervisor"} | {pid: kind for pid in children(node.pid) if (kind := kind_of(pid))}
        for pid, kind in kinds.items():
            with suppress(OSError):  # it has ended
                memory = process_memory(pid)
                amounts = {"": memory.resident, ANONYMOUS: memory.anonymous, FROM_FILES: memory.from_files}
                for part, amount in amounts.items():
                    series[kind + part, model].append(Sample(seconds, amount))
        for kind, amount in disk_bytes(root / model).items():
            series[kind, model].append(Sample(seconds, amount))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kind_of(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return next((kind for module, kind in MODULES.items() if module in command), None)


def disk_bytes(home: Path) -> dict[str, int]:
    """Returns what the files of a data directory take, by kind, and all but the record of rounds together."""
    found = dict.fromkeys(FILES.values(), 0) | {REST: 0}
    for path in home.iterdir() if home.exists() else ():
        found[FILES.get(path.name, REST)] += disk_bytes_below(path) if path.is_dir() else disk_bytes_of(path)
    return found | {DIRECTORY: sum(found.values()) - found[METRICS]}


def grown_mb_an_hour(samples: Sequence[Sample]) -> float:
    """Returns the difference of the means of the last and the first fifth, over the time between their middles."""
    first, last = samples[0].seconds, samples[-1].seconds
    width = SHARE * (last - first)
    early = [s.bytes for s in samples if s.seconds <= first + width]
    late = [s.bytes for s in samples if s.seconds >= last - width]
    hours = (last - first - width) / 3600.0
    return (fmean(late) - fmean(early)) / 1e6 / hours if hours > 0 else 0.0


def figures_of(series: Series, warm_up_seconds: float) -> list[Figure]:
    by_kind: dict[str, list[list[Sample]]] = defaultdict(list)
    for (kind, _), samples in series.items():
        by_kind[kind].append(samples)
    figures = []
    for kind, all_samples in by_kind.items():
        is_part = kind.endswith((ANONYMOUS, FROM_FILES)) or kind in (REST, *FILES.values())
        bar = None if is_part else f"≤ {PLATEAU_MB_AN_HOUR:g}"  # for the whole
        warm = [[s for s in samples if s.seconds >= warm_up_seconds] for samples in all_samples]
        halves = [samples[len(samples) // 2 :] for samples in warm]
        figures += [
            Figure(f"{kind}: most", max(s.bytes for samples in all_samples for s in samples) / 1e6, "MB", "lower"),
            Figure(f"{kind}: growth after the warm-up", max(map(grown_mb_an_hour, warm)), "MB/hour", "lower", bar),
            Figure(f"{kind}: growth in its second half", max(map(grown_mb_an_hour, halves)), "MB/hour", "lower", bar),
        ]
    written = max(map(grown_mb_an_hour, by_kind[METRICS]))
    hours = METRICS_BYTES / 1e6 / written if written > 0 else math.inf
    return [*figures, Figure(f"{METRICS}: full after", hours, "hours", "higher")]


def rounds_of(home: Path) -> int:
    """Returns the rounds that a node recorded."""
    lines = (line for path in home.glob(f"{METRICS}*") for line in path.read_bytes().splitlines())
    return sum(line.startswith(b'{"event":"round"') for line in lines)


def soak(root: Path, minutes: float) -> Series:
    nodes: dict[str, subprocess.Popen[bytes]] = {}
    series: Series = defaultdict(list)
    try:
        address = None
        for model in MODELS:
            nodes[model] = start(root / model, model, 0, address)
            address = address or first_address(nodes[model])
        began = said = time.monotonic()
        while (now := time.monotonic()) < began + 60.0 * minutes:
            sample(nodes, root, now - began, series)
            if now - said >= SAY_SECONDS:
                said = now
                latest = ", ".join(
                    f"{kind} {of[-1].bytes / 1e6:.0f}"
                    for (kind, model), of in series.items()
                    if model == MODELS[0] and not kind.endswith((ANONYMOUS, FROM_FILES))
                )
                print(f"{(now - began) / 60.0:6.1f} min, MB: {latest}", file=sys.stderr, flush=True)
            time.sleep(SAMPLE_SECONDS)
    finally:
        for node in nodes.values():
            node.send_signal(signal.SIGTERM)
        for node in nodes.values():
            node.wait()
    return series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=240.0)
    parser.add_argument("--warm-up", type=float, default=40.0, help="minutes in which caches fill (default 40)")
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.warm_up >= arguments.minutes:
        parser.error("--warm-up must be shorter than --minutes")
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        series = soak(Path(folder), arguments.minutes)
        rounds = [rounds_of(Path(folder) / model) for model in MODELS]
    figures = [
        Figure("length", arguments.minutes, "min", "higher"),
        Figure("rounds of the node with fewest", min(rounds), "rounds", "higher"),
        *figures_of(series, 60.0 * arguments.warm_up),
    ]
    report("soak", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
