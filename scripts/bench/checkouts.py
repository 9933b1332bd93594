"""Engine and learner of this checkout against those of another one, in turns: processor and wall seconds.

    git worktree add --detach ../before COMMIT
    python -m scripts.bench.checkouts ../before [--rounds 15] [--threads 1] [--json]

Work: the two workloads of ``scripts.bench.engine``, a round's conversations with one scoring worker (a commit without
conversations cannot be compared), and steps of ``scripts.bench.learner_step`` on one batch. Each
checkout has a process of its own, with the libraries of this one. They take turns, in each round in the opposite order
of the last. Figures are medians over the rounds of this checkout's seconds divided by the other's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from scripts import REPOSITORY
from scripts.bench.common.processes import ensure_compute_environment, line_of
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.learner_step import sampled_batch, with_advantages

CONTENDER: Final = REPOSITORY / "scripts/bench/contenders/checkout_contender.py"
WORKS: Final = ("engine, mixed", "engine, fixed", "conversations", "learner, four steps")
Seconds = tuple[float, float]  # of the processor, of the wall


def seconds_of(process: subprocess.Popen[str], work: str) -> Seconds:
    assert process.stdin is not None
    process.stdin.write(f"{work}\n")
    process.stdin.flush()
    cpu, wall = map(float, line_of(process).split())
    return cpu, wall


def figures_of(work: str, pairs: list[tuple[Seconds, Seconds]]) -> list[Figure]:
    figures = list[Figure]()
    for which, clock in enumerate(("processor", "wall")):
        ratios = [here[which] / there[which] for here, there in pairs]
        mine = statistics.median(here[which] for here, _ in pairs)
        low, _, high = statistics.quantiles(ratios, n=4)
        figures += [
            Figure(f"{work}: {clock}", mine, "s", "lower"),
            Figure(f"{work}: {clock}, here / there", statistics.median(ratios), "×", "lower", "≤ 1"),
            Figure(f"{work}: {clock}, quartiles apart", high - low, "×", "lower"),
        ]
    return figures


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        batch = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "batch.json"
        batch.write_text(json.dumps(with_advantages(sampled_batch(), "all")))
        start = f"import runpy, sys; sys.argv[0] = {str(CONTENDER)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
        command = [sys.executable, "-c", start, str(arguments.threads), str(batch)]
        processes = list[subprocess.Popen[str]]()
        for folder in (REPOSITORY, arguments.other):
            started = subprocess.Popen(command, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            process = stack.enter_context(started)
            stack.callback(process.terminate)
            while (line := line_of(process)) != "ready":
                if not line:
                    raise SystemExit(f"{folder}: its process ended")
            processes.append(process)
        pairs: dict[str, list[tuple[Seconds, Seconds]]] = {work: [] for work in WORKS}
        for number in range(arguments.rounds):
            for work in WORKS:
                turns = (0, 1) if number % 2 == 0 else (1, 0)
                found = {turn: seconds_of(processes[turn], work) for turn in turns}
                pairs[work].append((found[0], found[1]))
    report("checkouts", [each for work in WORKS for each in figures_of(work, pairs[work])], as_json=arguments.json)


if __name__ == "__main__":
    main()
