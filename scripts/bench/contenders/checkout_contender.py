"""The engine and the learner of the checkout in which this runs: ``python -c`` with that folder as working directory.

For each line of its input, the name of a piece of work, it does that work once and prints processor and wall seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def works(batch: dict[str, Any], folder: Path) -> dict[str, Callable[[], object]]:
    from scripts.bench.contenders.learner_step_contender import starling
    from scripts.bench.engine import starling_round, tiny_workloads

    rounds = {f"engine, {work.name}": starling_round(work) for work in tiny_workloads(folder)}
    return {**rounds, "learner, four steps": lambda: starling(batch, 2)}


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    batch = json.loads(Path(sys.argv[2]).read_text())
    with tempfile.TemporaryDirectory() as temporary:
        found = works(batch, Path(temporary))
        for run in found.values():
            run()
        print("ready", flush=True)
        for line in sys.stdin:
            cpu, wall = time.process_time(), time.perf_counter()
            found[line.strip()]()
            print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


main()
