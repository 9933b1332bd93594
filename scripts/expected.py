"""Makes the curves that ``starling report --against expected:NAME`` compares with: ``starling up`` alone, over seeds.

    python -m scripts.expected [--models wren robin finch] [--seeds 5] [--rounds 200] [--keep FOLDER]

Each run is a node of its own on loopback, at the defaults, without peers; only its seed is set, and its name, which
seeds its draws. A run that ended in FOLDER is not run again. Written are ``node/report/expected/MODEL.json``, which the
package has, and ``docs/expected/curves.svg``. A run of 200 rounds takes about a minute of a core.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from node.report.expected_curves import ExpectedCurve, bands, window_means
from node.report.facts import RunFacts, run_facts
from protocol.errors import ConfigurationError
from scripts import REPOSITORY
from scripts.bench.common.processes import LISTEN, STARLING, quiet_environment
from scripts.experiments.reports.plots import Line, line_plot

MODELS: Final = ("wren", "robin", "finch")
WINDOW_ROUNDS: Final = 10
COMMIT: Final = "commit"  # a file beside a run: of what code it is
NAME: Final = "expected"
LAST_WORDS: Final = 4000  # characters
CURVES: Final = REPOSITORY / "node" / "report" / "expected"
PICTURE: Final = REPOSITORY / "docs" / "expected" / "curves.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="data directories of the runs; those there are used"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starling-expected-") as folder:
        keep: Path = options.keep or Path(folder)
        for model in options.models:
            runs = [ended_run(keep / f"{model}-{seed}", model, seed, options.rounds) for seed in range(options.seeds)]
            CURVES.mkdir(exist_ok=True)
            commits = {(keep / f"{model}-{seed}" / COMMIT).read_text(encoding="utf-8") for seed in range(options.seeds)}
            if len(commits) > 1:
                raise SystemExit(f"{keep} has runs of {model} of several commits: {', '.join(sorted(commits))}")
            content = msgspec.json.encode(curve_of(model, runs, options.rounds, *commits))
            (CURVES / f"{model}.json").write_bytes(content + b"\n")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")


def ended_run(home: Path, model: str, seed: int, rounds: int) -> RunFacts:
    """Returns the run in ``home``, which is run first where it has not ended."""
    try:
        facts = run_facts(home / "metrics.jsonl")
    except ConfigurationError:
        facts = None
    if facts is None or facts.rounds < rounds:
        print(f"{model}, seed {seed}", file=sys.stderr, flush=True)
        run_alone(home, f"builtin:{model}", seed, rounds)
        (home / COMMIT).write_text(commit_here(), encoding="utf-8")
        facts = run_facts(home / "metrics.jsonl")
    if facts.rounds != rounds:
        raise SystemExit(f"{home} has {facts.rounds} rounds, not {rounds}: remove it")
    return facts


def run_alone(home: Path, model: str, seed: int, rounds: int) -> None:
    """Runs a node at the defaults for ``rounds`` rounds, on loopback and without peers.

    Raises ``SystemExit`` with what it printed last where it fails.
    """
    settings = {"rounds": rounds, "seed": seed, "name": NAME, "swarm.listen": LISTEN, "api.port": 0}
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
    command = [*STARLING, "up", "--home", str(home), "--model", model, *flags]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ended = subprocess.run(command, env=quiet_environment(), **pipes)
    if ended.returncode:
        raise SystemExit(f"the node ended with code {ended.returncode}; it printed last:\n{ended.stdout[-LAST_WORDS:]}")


def commit_here() -> str:
    head = ["git", "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(head, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY).stdout.strip()


def curve_of(model: str, runs: Sequence[RunFacts], rounds: int, commit: str) -> ExpectedCurve:
    return ExpectedCurve(
        expected=model,
        command=f"python -m scripts.expected --models {model} --seeds {len(runs)} --rounds {rounds}",
        commit=commit,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        window_rounds=WINDOW_ROUNDS,
        runs=tuple(_windows(run, None) for run in runs),
        tasks={task.task: tuple(_windows(run, task.task) for run in runs) for task in runs[0].gains.tasks},
    )


def _windows(run: RunFacts, task: str | None) -> tuple[float, ...]:
    found = window_means(run, task, WINDOW_ROUNDS)
    return tuple(round(value, 4) for value in found if value is not None)


def picture() -> str:
    """Returns the bands of all curves that are there, as one SVG."""
    lines = []
    for path in sorted(CURVES.glob("*.json")):
        curve = msgspec.json.decode(path.read_bytes(), type=ExpectedCurve)
        band = bands(curve.runs)
        at = [(index + 1) * curve.window_rounds for index in range(len(band))]
        columns: Mapping[str, list[float]] = {
            end: [getattr(each, end) for each in band] for end in ("low", "mean", "high")
        }
        lines.append(
            Line(f"{curve.expected}, {len(curve.runs)} seeds", at, columns["mean"], columns["low"], columns["high"])
        )
    return line_plot("starling up alone, at the defaults", lines, x_label="round", y_label="mean reward of 10 rounds")


if __name__ == "__main__":
    main()
