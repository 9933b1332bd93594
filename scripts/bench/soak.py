"""Memory and disk of whole nodes over hours: three nodes with the three built-in models, which learn from each other.

    python -m scripts.bench.soak [--minutes 240] [--warm-up 30] [--json]

Every five seconds the resident memory of each process and the blocks of each data directory are read. Nothing is
compressed: rounds, expiry and caches have their own times. Printed for each kind of process: the most that it took; its
growth after the warm-up, as the difference between the means of the first and of the last fifth, over the time between
them; and by how much the second half of that time grew. A plateau is a growth of less than ``PLATEAU_MB_AN_HOUR``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from node.supervision.watching.process_memory import resident_bytes
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.pictures import MODELS, first_address, start
from swarm.blobs.disk_bytes import disk_bytes_of

SAMPLE_SECONDS: Final = 5.0
SAY_SECONDS: Final = 60.0
SHARE: Final = 0.2  # of the time after the warm-up over which a mean is taken
PLATEAU_MB_AN_HOUR: Final = 10.0
MODULES: Final = {"swarm.swarm_process": "swarm process", "node.learner.learner_process": "learner"}


class Sample(NamedTuple):
    seconds: float
    bytes: float


Series = dict[tuple[str, str], list[Sample]]  # by (kind, model)


def sample(nodes: Mapping[str, subprocess.Popen[bytes]], root: Path, seconds: float, series: Series) -> None:
    for model, node in nodes.items():
        kinds = {node.pid: "supervisor"} | {pid: kind for pid in children(node.pid) if (kind := kind_of(pid))}
        for pid, kind in kinds.items():
            if (resident := resident_bytes(pid)) is not None:
                series[kind, model].append(Sample(seconds, resident))
        series["data directory", model].append(Sample(seconds, disk_bytes(root / model)))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kind_of(pid: int) -> str | None:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return next((kind for module, kind in MODULES.items() if module in command), None)


def disk_bytes(folder: Path) -> float:
    """Returns what its files take; a file that goes away meanwhile counts as none."""
    return float(sum(disk_bytes_of(Path(where) / name) for where, _, names in os.walk(folder) for name in names))


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
        warm = [[s for s in samples if s.seconds >= warm_up_seconds] for samples in all_samples]
        halves = [samples[len(samples) // 2 :] for samples in warm]
        figures += [
            Figure(f"{kind}: most", max(s.bytes for samples in all_samples for s in samples) / 1e6, "MB", "lower"),
            Figure(
                f"{kind}: growth after the warm-up, steepest of the nodes",
                max(map(grown_mb_an_hour, warm)), "MB/hour", "lower", f"≤ {PLATEAU_MB_AN_HOUR:g}",
            ),
            Figure(
                f"{kind}: growth in the second half of that",
                max(map(grown_mb_an_hour, halves)), "MB/hour", "lower", f"≤ {PLATEAU_MB_AN_HOUR:g}",
            ),
        ]  # fmt: skip
    return figures


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
                    f"{kind} {of[-1].bytes / 1e6:.0f}" for (kind, m), of in series.items() if m == MODELS[0]
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
    parser.add_argument("--warm-up", type=float, default=30.0, help="minutes in which caches fill (default 30)")
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.warm_up >= arguments.minutes:
        parser.error("--warm-up must be shorter than --minutes")
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        series = soak(Path(folder), arguments.minutes)
    figures = [Figure("length", arguments.minutes, "min", "higher"), *figures_of(series, 60.0 * arguments.warm_up)]
    report("soak", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
