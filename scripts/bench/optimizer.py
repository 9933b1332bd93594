"""Each kind of ``learner.optimizer`` on the CPU: seconds a step, bytes held, and bytes that a step needs besides.

    python -m scripts.bench.optimizer [--parameters 50000000] [--steps 3] [--json]

The parameters are those of one embedding of 1,024 columns in bfloat16, as in a policy that computes in it; gradients
too. Each kind runs in a process of its own, so that its peak is its own. Bytes are those of the process (resident), per
parameter; "besides" is the peak in the steps above what is held after them. A step of "host" is that of a node whose
policy is on the CPU; on a GPU the transfers come on top.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Final, get_args

import torch

from node.configuration import LearnerSection, OptimizerName
from node.learner.steps.optimizer import MasterAdamW
from scripts.bench.common.compute_process import ensure_compute_environment
from scripts.bench.common.process_memory import process_memory
from scripts.bench.common.reporting import Figure, add_json_flag, report

KINDS: Final[tuple[OptimizerName, ...]] = get_args(OptimizerName)
COLUMNS: Final = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=50_000_000)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.kind is not None:
        print(json.dumps(measured(arguments.kind, arguments.parameters, arguments.steps)))
        return
    ensure_compute_environment()
    figures: list[Figure] = []
    for kind in KINDS:
        command = [sys.executable, "-m", "scripts.bench.optimizer", "--kind", kind]
        command += ["--parameters", str(arguments.parameters), "--steps", str(arguments.steps)]
        seconds, held, besides = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        figures += [
            Figure(f"{kind}: a step", seconds, "s", "lower"),
            Figure(f"{kind}: master and moments", held, "bytes each", "lower"),
            Figure(f"{kind}: besides, during a step", besides, "bytes each", "lower"),
        ]
    report("optimizer", figures, as_json=arguments.json)


def measured(kind: OptimizerName, parameters: int, steps: int) -> tuple[float, float, float]:
    """Returns the seconds of the fastest of ``steps``, and bytes a parameter held and needed besides."""
    rows = parameters // COLUMNS
    weights = torch.nn.Parameter(torch.randn(rows, COLUMNS).to(torch.bfloat16))
    weights.grad = torch.full_like(weights, 1e-3)
    step_of_a_small_one(kind)  # what libraries allocate once is not the optimizer's
    before = process_memory().resident
    optimizer = MasterAdamW({"w": weights}, LearnerSection(learning_rate=1e-6, optimizer=kind))
    taken = []
    for _ in range(steps):
        gradient = weights.grad
        began = time.perf_counter()
        assert optimizer.step().taken
        taken.append(time.perf_counter() - began)
        weights.grad = gradient
    held = process_memory().resident - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    count = rows * COLUMNS
    return min(taken), held / count, (peak - held) / count


def step_of_a_small_one(kind: OptimizerName) -> None:
    small = torch.nn.Parameter(torch.randn(64, COLUMNS))
    small.grad = torch.ones_like(small)
    MasterAdamW({"w": small}, LearnerSection(learning_rate=1e-6, optimizer=kind)).step()


if __name__ == "__main__":
    main()
