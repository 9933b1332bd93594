"""The time that a user waits: from ``starling up`` to the first training step, and for ``starling status``; and what a
start takes of the machine.

    python -m scripts.bench.startup [--json] [--starts 3]

Each start is a whole node in a fresh data directory on the loopback interface with the built-in model; a figure is the
median. The first training step is over when the node reports the first round with a loss. Processor seconds are of all
processes of the node until then; the learner's memory is what it holds some seconds later.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from node.api.node_client import ask_status
from node.home import Home
from scripts.bench.common.process_usage import process_memory, tree_cpu_seconds
from scripts.bench.common.processes import STARLING, quiet_environment, started_node
from scripts.bench.common.reporting import Figure, figures_parser, report

STATUS_CALLS = 7


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--starts", type=int, default=3, help="nodes started one after the other")
    arguments = parser.parse_args()
    starts = []
    for _ in range(arguments.starts):
        with tempfile.TemporaryDirectory(prefix="st-") as home:
            starts.append(one_start(Path(home)))
    statuses = [seconds for start in starts for seconds in start.status_seconds]
    torch_modules = sum(start.torch_modules for start in starts)

    def median(name: str) -> float:
        return float(statistics.median(getattr(start, name) for start in starts))

    figures = [
        Figure("first training step after starling up", median("step_seconds"), "s", "lower", "<= 20 s"),
        Figure("processor time until then", median("processor_seconds"), "s", "lower"),
        Figure("memory of the learner after its first steps", median("learner_mb"), "MB", "lower"),
        Figure("starling status", statistics.median(statuses), "s", "lower", "<= 0.5 s"),
        Figure("starling status, slowest", max(statuses), "s", "lower"),
        Figure("modules of torch that starling status imports", torch_modules, "modules", "lower", "0"),
    ]
    report("startup", figures, as_json=arguments.json)


@dataclass(frozen=True)
class Start:
    step_seconds: float
    processor_seconds: float
    learner_mb: float
    status_seconds: list[float]  # of each call during training
    torch_modules: int  # that status imports


def one_start(home: Path) -> Start:
    began = time.perf_counter()
    with started_node(home) as node:
        assert node.stdin is not None and node.stdout is not None
        try:
            step_seconds = None
            for line in node.stdout:
                event = json.loads(line)
                if event["event"] == "round" and event["loss"] is not None:
                    step_seconds = time.perf_counter() - began
                    break
            if step_seconds is None:
                raise SystemExit(f"the node ended with exit code {node.wait()} before its first training step")
            processor_seconds = tree_cpu_seconds(node.pid)
            rest = threading.Thread(target=node.stdout.read)  # a node whose output is not read stops
            rest.start()
            status_seconds = [status_call(home) for _ in range(STATUS_CALLS)]
            modules = torch_modules_of_status(home)
            learner = ask_status(Home(home)).learner_process
            assert learner.pid is not None
            learner_mb = process_memory(learner.pid).resident / 1e6
        finally:
            node.stdin.close()
        rest.join()
    return Start(step_seconds, processor_seconds, learner_mb, status_seconds, modules)


def status_call(home: Path) -> float:
    began = time.perf_counter()
    command = [*STARLING, "status", "--home", str(home)]
    subprocess.run(command, env=quiet_environment(), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def torch_modules_of_status(home: Path) -> int:
    """Returns how many modules of torch ``starling status`` imports, from ``-X importtime``."""
    command = [sys.executable, "-X", "importtime", *STARLING[1:], "status", "--home", str(home)]
    ended = subprocess.run(command, env=quiet_environment(), check=True, capture_output=True, text=True)
    imported = [
        line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if line.startswith("import time:")
    ]
    return sum(name == "torch" or name.startswith("torch.") for name in imported)


if __name__ == "__main__":
    main()
