"""``starling demo`` as a benchmark, over seeds: what each model gains on tasks that it was weak on, and what it loses.

Rewards are means at temperature 1 on held-out prompts. A fall is from before training to after it, of any task of any
model in any run; on few prompts part of the greatest of so many is chance (200 prompts: about .03).

    python -m scripts.bench.demo [--seeds 3] [--minutes 3 | --tokens N] [--keep FOLDER] [--json]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from node.demo.plan import DemoReport
from scripts.bench.common.reporting import Figure, figures_parser, report

FALL_BAR: Final = 0.1


def figures_of(runs: Sequence[DemoReport]) -> list[Figure]:
    """Returns the figures of the models that were weak on some task, then the falls. Expects one run or more."""
    found = []
    for model in runs[0].weak_means:
        name = model.removeprefix("builtin:")
        for stage in ("alone", "together"):
            means = [mean for run in runs if (mean := run.weak_means[model][stage]) is not None]
            if means:
                named = f"{name}: mean reward on weak tasks, {stage}"
                found.append(Figure(named, statistics.fmean(means), "", "higher"))
                if len(means) > 1:
                    found.append(Figure(f"{named}, least of {len(means)} runs", min(means), "", "higher"))
    judged = [better for run in runs for better in run.better_together.values() if better is not None]
    found.append(Figure("better together than alone", sum(judged) / len(judged), "of models", "higher", "all"))
    for stage in ("alone", "together"):
        all_falls = falls(runs, stage)
        most, where = max(all_falls)
        print(f"greatest fall {stage}: {where}", file=sys.stderr)
        bar = f"≤ {FALL_BAR:g}" if stage == "together" else None
        found.append(Figure(f"greatest fall of a task, {stage}", most, "reward", "lower", bar))
        count = sum(fall > FALL_BAR for fall, _ in all_falls)
        found.append(Figure(f"falls by more than {FALL_BAR:g} among {len(all_falls)}, {stage}", count, "", "lower"))
    return found


def falls(runs: Sequence[DemoReport], stage: str) -> list[tuple[float, str]]:
    """Returns by how much each task of each model in each run is lower after ``stage``; negative where it rose."""
    return [
        (
            was - getattr(result, stage).sampled[task],
            f"{result.model.removeprefix('builtin:')}, {task}, seed {run.seed}",
        )
        for run in runs
        for result in run.models
        for task, was in result.before.sampled.items()
    ]


def run_demo(seed: int, length: Sequence[str], folder: Path) -> DemoReport:
    written = folder / f"demo-{seed}.json"
    command = [sys.executable, "-m", "node.cli.main", "demo", "--seed", str(seed), *length, "--json", str(written)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return msgspec.json.decode(written.read_bytes(), type=DemoReport)


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="runs, with seeds from 0 on")
    parser.add_argument("--keep", type=Path, help="a folder for the report of each demonstration")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=3.0, help="of training alone, and of training together")
    length.add_argument("--tokens", type=int, help="that each model generates, on however busy a machine")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error("--seeds is at least 1")
    tokens = None if arguments.tokens is None else ["--tokens", str(arguments.tokens)]
    long = tokens or ["--minutes", f"{arguments.minutes:g}"]
    with tempfile.TemporaryDirectory() as folder:
        runs = [run_demo(seed, long, arguments.keep or Path(folder)) for seed in range(arguments.seeds)]
    report("demo", figures_of(runs), as_json=arguments.json)


if __name__ == "__main__":
    main()
